"""The dynamic twin: a simulated world kept in step with a real one by its joints and its cameras."""

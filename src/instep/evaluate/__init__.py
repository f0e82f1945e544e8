"""Judge policies: parallel evaluation, agreement with reality, gates."""

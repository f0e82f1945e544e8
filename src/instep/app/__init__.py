"""Entry points: commands, reports of runs, the demo, simulated robots, Gymnasium environments, clusters."""

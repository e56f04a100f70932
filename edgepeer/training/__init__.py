"""Trainers, data and jobs: everything that turns samples into gradients. Knows nothing of the network."""

"""What training systems share: recipe, data, optimizers, loss scaling, checkpoints, and what is recorded."""

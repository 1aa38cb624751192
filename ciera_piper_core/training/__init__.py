"""What every training system shares: the recipe, the data, optimizers, loss scaling, checkpoints, and what is recorded."""

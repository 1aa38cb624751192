"""Measuring as a Slurm job: the batch script, its submission, and following it to its rows."""

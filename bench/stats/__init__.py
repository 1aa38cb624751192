"""Statistics of the gate and of history: noise, comparison of pairs, change points, judgement."""

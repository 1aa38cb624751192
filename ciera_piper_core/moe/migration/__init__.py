"""Moving experts between ranks while a model trains: where to, whether it pays, and the move itself.

``solver`` finds a placement that spreads the load, ``trigger`` decides whether moving there pays,
``mover`` moves the experts with all that belongs to them, and ``migrator`` does the three in turn
for the layers of a model that trains.
"""

"""Mixture-of-experts layers: the experts' computation, routing and placement."""

"""From a topology and a live broker to the steps between them, and what each step moves."""

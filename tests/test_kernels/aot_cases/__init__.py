"""Cases of the ahead-of-time gate, one module ``CASES`` per operator."""

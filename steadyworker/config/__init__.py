"""
Settings: the table of options (`options`), the options of services (`services`), and the rule that selects each value (`resolve`).

`resolve.load` checks all settings, and returns them as one frozen `Options`.
"""

"""What goes wrong in an emulated fleet on purpose: written down as text, scheduled, injected and confirmed.

A fault is data (`kinds`) with a text form (`texts`). A `plan` is a checked list of them, from flags and scenario
files (`scenarios`). The `schedule` says when which is due, the `injector` does it (`links`, `lives`, `outage`) and
fails the run when one did not take effect.
"""

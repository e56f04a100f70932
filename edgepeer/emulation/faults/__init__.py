"""What goes wrong in an emulated fleet on purpose: written down as text, scheduled, injected and confirmed.

kinds.py      the faults as data
texts.py      the same as text, for flags and files
scenarios.py  files with faults, and a library of them
plan.py       a list of faults that can all happen
schedule.py   when which is due
injector.py   carries them out beside a job, and fails the run when one did not take effect
scene.py      what they are done to
links.py      faults of links
lives.py      faults of peers
outage.py     the broker's
flips.py      soft errors, which peers make themselves
proc.py       what /proc says, and a way to slow a process down
duty_cycle.py for how long it is stopped then, and for how long it runs
record.py     a fault that was injected, as reports tell of it
"""

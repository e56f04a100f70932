"""How devices come into a fleet, and stay in it: tokens, certificates, the service that hands them out.

strings.py    the join string, which is all that a device needs
messages.py   what client and service say to each other
places.py     which directories are meant where none is given
database.py   the registrar's file: all of a change is in it, or nothing
registrar.py  the authority: makes tokens, issues, renews and evicts, rotates itself
guesses.py    how often one address may be wrong
service.py    `edgepeer fleet serve`: enrolment and renewal over TLS
client.py     the other end of it
joining.py    what a device does to join, whenever its power fails
renewal.py    keeps a member's certificate from expiring while it runs
keeping.py    the same beside whatever else a process does
household.py  the members on the registrar's own machine

The registrar's machine is trusted with everything; training never needs it. Nobody imports what loads cryptography,
which is most of it, before it is needed.
"""

"""Who is of the fleet, and who is not any more: keys, certificates, and the list of those who are out.

loading.py       a device's identity, if it has one
names.py         roles, and whom a certificate names
clock.py         what time it is, where the clock can be believed
files.py         files that are there whole or not at all, and private ones
directory.py     the directory that makes a device one of a fleet, as far as it can be read without cryptography
later.py         files that are written in a thread, while event loops go on
lives.py         the number of a member's last life, where it has no state directory
certificates.py  authorities, certificates and requests for them: made, issued, checked
evictions.py     the list of who is out, and of the authorities that count, as the fleet signs it
ciphers.py       what is sealed with which cipher, and keys for it
sealing.py       what one life of a peer seals for one of another, that others carry
shown.py         a key and its certificate as TLS shows them: what a process holds, not what is on the disk by now
identity.py      a device's identity: what it signs with, and whom it believes
founding.py      a fleet that lives as long as its process, for emulations and tests

Only the last seven import `cryptography`, and nobody imports them before a fleet is configured.
"""

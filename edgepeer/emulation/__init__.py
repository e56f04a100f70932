"""Whole fleets as processes on one machine: a broker, a network, peers and what befalls them.

launcher.py  all of it for one job
jobs.py      from settings to a fleet and its job
fleet.py     the peer processes
members.py   the fleet that they are members of, where one is wanted
home.py      the directory that they keep their things in
network/     the network that they live in
faults/      what goes wrong on purpose
"""

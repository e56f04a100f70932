"""A job as its users see it, emulated or not: put into a fabric, followed, shown, reported, and its model brought home.

jobs.py        from settings to a job; what nobody can do is refused
follow.py      publishes a job and follows it to its end
announcing.py  says what the job is, until a broker has it
observe.py     a client that looks at a fabric without being a peer
picture.py     what a fabric says of itself at one moment
progress.py    what is known of a running job
round_feed.py  rounds from the files that peers on this machine write
result.py      how a job ended
tally.py       what became of wrong numbers in a split job
marks.py       what is broken on purpose, as pictures and reports tell of it
texts.py       all of that in words
display.py     shows it while it runs: plain lines, or live
panels.py      the live picture
report.py      the files that a run leaves behind
plot.py        the pictures among them
fault_table.py what faults cost, as a table
saving.py      the trained model into a file
parts.py       of a split job, the blocks that it is put together of
"""

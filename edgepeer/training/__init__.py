"""Trainers, data and jobs: everything that turns samples into gradients. Knows nothing of the network.

job.py          what to train, on what, for how long: one document
code_choice.py, split_choice.py: how its rounds are coded, and how its model is divided, checked
build.py        from a job and a data set to a trainer
trainer.py      what a trainer is
keras_trainer.py, keras_setup.py: with Keras
numpy_trainer.py  with NumPy alone
models.py       models by name, or as JSON
architecture.py whether two compute the same
form.py         what goes into a model, and what comes out
sizes.py        whether it can be trained here
losses.py, optimizers.py, schedules.py: by name, alike in both trainers
named.py        how such names are read and written

datasets.py     data sets by name
npz.py, idx.py  their files, read within limits
sharding.py     who trains on which sample in which round
batches.py      the gradients of a job's batches
seeded.py       randomness that is the same on all devices
powers.py       powers and cosines that are

state.py        a replica's state as bytes
checkpoint.py   in a file, with all that it takes to go on
saved.py        trained models in files

split/          networks that are divided over many nodes
"""

"""The control plane: one MQTT connection per peer, its documents, and brokers to run on this machine.

address.py       where the broker is
topics.py        the names on MQTT
documents.py     what peers publish about themselves
events.py        what a client tells its owner
client.py        a peer's place in a fabric
reconnecting.py  one connection after the other
connection.py    one MQTT connection
tls.py           its encryption
in_fleet.py      what being of a fleet means for it
gate.py          what counts of what comes, by who has signed it
envelope.py      how it is signed
announced.py     the last job that a fleet has announced
spreading.py     who is out of a fleet
outbox.py        what a client still has to say
inbox.py         from messages to events
hearing.py       what these mean
asking.py        a question to all others
catching_up.py   how a new connection hears all that was said before
looking.py       whether a broker that comes before this one is back
twins.py         two peers of one id
relay.py         vectors through the broker, where no other path is left
rights.py        who may write and read what on a fleet's broker
broker.py        a broker inside this process
tls_server.py    how it listens in a fleet
amqtt_parts.py   what it adds to amqtt
mosquitto.py     mosquitto as a child
"""

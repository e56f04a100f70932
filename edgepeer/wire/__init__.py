"""Bytes: frames between peers and documents on MQTT. A leaf: knows no protocol, no sockets, no clock."""

"""Network namespaces of this process: leaving the machine's own, making more, going from one to another.

Namespaces have no names: they live while a process is in them or holds them open, and nothing of them stays
behind, however that process ends. For a process of one thread.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Final

__all__ = ["current_namespace", "enter_namespace", "leave_machine", "new_namespace"]

_CLONE_NEWUSER: Final = 0x10000000
_CLONE_NEWNET: Final = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def leave_machine() -> bool:
    """Put this process into a network namespace of its own, with full rights in it.

    Returns: whether that took a user namespace, as for everybody but root.
    Raises:
        OSError: this machine does not let us.
    """
    if os.geteuid() == 0:
        try:
            _unshare(_CLONE_NEWNET)
        except PermissionError:  # root in a container, without the right to administer it
            pass
        else:
            return False
    user, group = os.geteuid(), os.getegid()
    _unshare(_CLONE_NEWUSER)
    # Everybody stays who they are, so that files, and programs that look at their user, see no difference.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _unshare(_CLONE_NEWNET)
    return True


def current_namespace() -> int:
    """A descriptor that holds the network namespace that this process is in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def new_namespace() -> int:
    """Go into a fresh network namespace; returns a descriptor that holds it. Raises OSError."""
    _unshare(_CLONE_NEWNET)
    return current_namespace()


def enter_namespace(descriptor: int) -> None:
    """Go into a network namespace. Raises OSError."""
    if _libc.setns(descriptor, _CLONE_NEWNET):
        raise _error("setns")


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        raise _error("unshare")


def _error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), call)

"""All attacks."""

from __future__ import annotations

from tests.hostile.attack import Attack
from tests.hostile.file_attacks import FILE_ATTACKS
from tests.hostile.node_attacks import NODE_ATTACKS
from tests.hostile.permission_attacks import PERMISSION_ATTACKS
from tests.hostile.tree_attacks import TREE_ATTACKS

ATTACKS: tuple[Attack, ...] = (*TREE_ATTACKS, *FILE_ATTACKS, *NODE_ATTACKS, *PERMISSION_ATTACKS)

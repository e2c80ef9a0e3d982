"""Copies one random directory with one kernel, and prints what became of each row, as JSON; for ``test_kernel_fuzz``.

    fuzz_kernel KERNEL SEED SOURCE TARGET

All that is random comes from the seed, so that each kernel is given the same.
"""

from __future__ import annotations

import json
import os
import sys
from random import Random

from pcopy.fsio.kernel.batches import SYNC, Copied, Copy, Plan
from pcopy.fsio.kernel.columns import FOUND, Code, Rows, pack_names, unpack_names
from pcopy.fsio.kernel.interface import Settings
from pcopy.fsio.preserve import ATTRIBUTES, Preserve
from pcopy.tasks.base.hashing import Hashing
from tests.fsio.kernel_bench import KERNELS, done

_TOLD = (Code.LACKS, Code.FAILED, Code.UNREAD, Code.CHANGED)


def batch_of(random: Random, source: int, target: int) -> Copy:
    """Most rows are as they were found, and most plans fit what is there."""
    names = sorted(map(os.fsencode, os.listdir(source)))
    present = set(map(os.fsencode, os.listdir(target)))
    rows = Rows(len(names), FOUND)
    rows.put(0, [os.stat(name, dir_fd=source, follow_symlinks=False) for name in names])
    plans = []
    for row, name in enumerate(names):
        if random.random() < 0.05:
            column = random.choice((rows.size, rows.mtime, rows.ctime, rows.inode, rows.device))
            column[row] += 1
        plan = random.choice((Plan.NEW, Plan.REPLACE, Plan.TEMPORARY, Plan.NEW))
        if name in present and random.random() < 0.8:
            plan = Plan.REPLACE
        if random.random() < 0.05:
            plan = random.choice((Plan.SKIP, Plan.REFUSE, Plan.CARE))
        plans.append(plan | (SYNC if random.random() < 0.2 else 0))
    faults = [name.rpartition(b"!")[2] if b"!" in name else b"" for name in names]
    temporaries = [b".t%d!%s" % (row, fault) if fault else b".t%d" % row for row, fault in enumerate(faults)]
    inherits = "system.posix_acl_default" in os.listxattr(target)
    return Copy(source, pack_names(names), target, bytes(plans), rows, b"", pack_names(temporaries), inherits=inherits)


def main(kernel_name: str, seed: str, *places: str) -> None:
    random = Random(f"batch {seed}")
    kept = {name: random.random() < 0.7 for name in ATTRIBUTES}
    algorithm, block = random.choice(("", "xxh3-128", "blake3")), 1 << random.randint(16, 22)
    digest = Hashing(algorithm, block).whole if algorithm else None
    preserve = Preserve()._replace(**kept)  # type: ignore[arg-type]
    settings = Settings(preserve, random.choice((0o022, 0o077, 0)), False, digest, algorithm, block)
    kernel = KERNELS[kernel_name](settings)
    source, target = (os.open(place, os.O_RDONLY) for place in places)
    before = len(os.listdir("/proc/self/fd"))
    told = []
    for _ in range(2):  # once more, when the kernel knows the attributes
        batch = batch_of(random, source, target)
        result: Copied = done(kernel, batch)
        verdicts = result.verdicts
        for row, name in enumerate(unpack_names(batch.names)):
            code = Code(verdicts.codes[row])
            problem = verdicts.problem(row).plain if code in _TOLD else ()
            is_whole = code in (Code.DONE, Code.LACKS)
            bytes_and_digest = (verdicts.bytes[row], result.digests[row].hex()) if is_whole else ()
            excused = list(result.applied.get(row, ()))
            told.append((os.fsdecode(name), batch.plans[row], code.name, problem, bytes_and_digest, excused))
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
    kernel.close()
    print(json.dumps([kept, told], default=repr))


if __name__ == "__main__":
    main(*sys.argv[1:])

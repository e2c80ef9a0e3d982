"""Copy a random directory with one backend and print the outcome of each row as JSON; for ``test_backend_fuzz``.

    fuzz_backend BACKEND SEED SOURCE TARGET

Everything random comes from the seed, so that each backend gets the same input.
"""

from __future__ import annotations

import json
import os
import sys
from random import Random

from pcopy.fsio.backend.batches import SYNC_FILE_FLAG, CopyPlan, CopySmallFilesBatch, CopySmallFilesResult
from pcopy.fsio.backend.columns import SCAN_COLUMNS, ItemStatusColumns, OutcomeCode, pack_names, unpack_names
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.preserve import PRESERVABLE_METADATA, PreservedMetadataKinds
from pcopy.tasks.base.hashing import JobItemHasher
from tests.fsio.backend_bench import BACKENDS, done

_CODES_WITH_PROBLEM = (
    OutcomeCode.LACKS_METADATA,
    OutcomeCode.FAILED,
    OutcomeCode.SOURCE_FAILED,
    OutcomeCode.SOURCE_CHANGED,
)


def batch_of(random: Random, source: int, target: int) -> CopySmallFilesBatch:
    """A batch in which most rows match the files, and most plans fit the existing targets."""
    names = sorted(map(os.fsencode, os.listdir(source)))
    present = set(map(os.fsencode, os.listdir(target)))
    rows = ItemStatusColumns(len(names), SCAN_COLUMNS)
    rows.set_statuses(0, [os.stat(name, dir_fd=source, follow_symlinks=False) for name in names])
    plans = []
    for row, name in enumerate(names):
        if random.random() < 0.05:
            column = random.choice((rows.size, rows.mtime, rows.ctime, rows.inode, rows.device))
            column[row] += 1
        plan = random.choice((CopyPlan.NEW, CopyPlan.REPLACE, CopyPlan.TEMPORARY, CopyPlan.NEW))
        if name in present and random.random() < 0.8:
            plan = CopyPlan.REPLACE
        if random.random() < 0.05:
            plan = random.choice((CopyPlan.SKIP, CopyPlan.REFUSE, CopyPlan.SLOW_PATH))
        plans.append(plan | (SYNC_FILE_FLAG if random.random() < 0.2 else 0))
    faults = [name.rpartition(b"!")[2] if b"!" in name else b"" for name in names]
    temporaries = [b".t%d!%s" % (row, fault) if fault else b".t%d" % row for row, fault in enumerate(faults)]
    inherits = "system.posix_acl_default" in os.listxattr(target)
    return CopySmallFilesBatch(
        source, pack_names(names), target, bytes(plans), rows, b"", pack_names(temporaries), inherits_acl=inherits
    )


def main(backend_name: str, seed: str, *places: str) -> None:
    random = Random(f"batch {seed}")
    kept = {name: random.random() < 0.7 for name in PRESERVABLE_METADATA}
    algorithm, block = random.choice(("", "xxh3-128", "blake3")), 1 << random.randint(16, 22)
    digest = JobItemHasher(algorithm, block).digest_of_data if algorithm else None
    preserve = PreservedMetadataKinds()._replace(**kept)  # type: ignore[arg-type]
    settings = BackendSettings(preserve, random.choice((0o022, 0o077, 0)), False, digest, algorithm, block)
    backend = BACKENDS[backend_name](settings)
    source, target = (os.open(place, os.O_RDONLY) for place in places)
    before = len(os.listdir("/proc/self/fd"))
    reported = []
    for _ in range(2):  # the second time the C backend knows the attributes
        batch = batch_of(random, source, target)
        result: CopySmallFilesResult = done(backend, batch)
        verdicts = result.verdicts
        for row, name in enumerate(unpack_names(batch.names)):
            code = OutcomeCode(verdicts.codes[row])
            problem = verdicts.problem(row).problem_as_tuple if code in _CODES_WITH_PROBLEM else ()
            is_whole = code in (OutcomeCode.DONE, OutcomeCode.LACKS_METADATA)
            bytes_and_digest = (verdicts.bytes[row], result.digests[row].hex()) if is_whole else ()
            excused = list(result.metadata_outcomes.get(row, ()))
            reported.append((os.fsdecode(name), batch.plans[row], code.name, problem, bytes_and_digest, excused))
    assert len(os.listdir("/proc/self/fd")) == before, "a descriptor is left open"
    backend.close()
    print(json.dumps([kept, reported], default=repr))


if __name__ == "__main__":
    main(*sys.argv[1:])

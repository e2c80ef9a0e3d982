"""The environment of a child process: that of the caller, without the variables by which a launcher (mpiexec, srun)
describes the caller's own rank: the program would take itself for that rank. ``PYTHONIOENCODING`` is not passed either,
since the caller decodes what the program prints.
"""

from __future__ import annotations

from collections.abc import Mapping

_PREFIXES = ("PMI_", "PMIX_", "HYDI_", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_STEP")
"""Beginnings of the names of variables of launchers."""
_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_GTIDS")
"""Names of further variables of launchers."""

_SETTING_PREFIXES = ("OMPI_MCA_", "PMIX_MCA_", "PRTE_MCA_")
"""Beginnings of the names of variables by which users configure Open MPI."""
_KEPT_NAMES = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""Names of further variables by which users configure Open MPI."""
_SETTINGS_OF_LAUNCHERS = (
    *("ess", "pmix", "initial_wdir", "orte_app_num", "orte_bound_at_launch", "orte_ess", "orte_hnp_uri"),
    *("orte_jobfam", "orte_launch", "orte_local_daemon", "orte_num_nodes", "orte_precondition", "orte_top_session"),
    *("prte_ess", "prte_hnp_uri", "prte_launch", "prte_local_daemon", "prte_num_nodes"),
)
"""Beginnings of the names, after such a prefix, of settings that Open MPI's launcher sets for its ranks."""


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the child of a process with this ``environment``."""
    return {
        name: value for name, value in environment.items() if name != "PYTHONIOENCODING" and not _is_of_launcher(name)
    }


def _is_of_launcher(name: str) -> bool:
    for prefix in _SETTING_PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix).startswith(_SETTINGS_OF_LAUNCHERS)
    return (name.startswith(_PREFIXES) and name not in _KEPT_NAMES) or name in _NAMES

"""Writes the batch script of a job: readable, complete, and fit to be submitted again by hand."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.launch.launchers import PORT_BASE, PORT_SPAN
from bench.same_python import python_command
from bench.slurm.folder import EXIT_CODE, LOG, OUTPUT, SCRIPT

if TYPE_CHECKING:
    from bench.slurm.measured import MeasuredCommand
    from bench.slurm.options import JobOptions

STARTS = 8
"""Ports that a job has to itself, one for each start of its ranks."""
RETRIES = 3
"""How often a group that lost a rank is started again for the cases left."""

_TEMPLATE = """\
#!/usr/bin/env bash
# Written by `bench submit`. To submit it again by hand: sbatch {script}, in the folder where it lies.
{directives}
#SBATCH --output={output}
#SBATCH --error={log}
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --export=ALL
set -euo pipefail

python=({python})
store={store}
job_folder="$store"/{job_folder}
cd {working_folder}
export PATH={python_folder}:"$PATH"{cpus}

# Where the ranks meet: on the node of rank 0, at a port that no other job uses.
read -r first_node < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
MASTER_ADDR=$(scontrol show node "$first_node" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR
export MASTER_PORT=$(({port_base} + SLURM_JOB_ID * {starts} % {port_span}))

# A rank that dies ends the step at once, so that the others do not wait for it until the time limit.
measure() {{
    rm -f "$job_folder/{exit_code}"
    status=0
    MASTER_PORT=$((MASTER_PORT + 1))
    srun --kill-on-bad-exit=1 "${{python[@]}}" -m bench.slurm.task "$job_folder/{exit_code}" {verb} \\
        --store "$store" "$@" || status=$?
}}
run_of_this_job() {{
    "${{python[@]}}" -m bench.slurm.run_of_log "$job_folder/{log}" "$store" "$@"
}}
# Slurm ends a job with SIGTERM: let the ranks store what they have, and start nothing any more.
trap 'exit 143' TERM

# A job that Slurm has started again goes on with its run: what was measured is not measured twice.
if [[ ${{SLURM_RESTART_COUNT:-0}} -gt 0 ]] && run_id=$(run_of_this_job); then
    measure {again} "$run_id"
else
    measure {first}
fi
# A lost rank costs its case and its group: another group measures the cases that are left.
for _ in {retries}; do
    noted=$(cat "$job_folder/{exit_code}" 2>/dev/null || echo none)
    if [[ $status -eq 0 || $noted == 2 ]] || ! run_id=$(run_of_this_job --unfinished); then
        break
    fi
    measure {again} "$run_id"
done
exit "$status"
"""


def batch_script(options: JobOptions, command: MeasuredCommand, job_folder: Path, store: Path) -> str:
    """The text of the script; every path and argument in it is quoted for the shell.

    Args:
        job_folder: in the store; where the script and what it writes lie. Slurm's working folder is this
            one, so that no line for Slurm holds a path.
        store: absolute; on a file system that the nodes share.
    """
    directives = [*options.directives()]
    if not options.get("name"):
        directives.insert(0, f"--job-name=bench-{command.verb}")
    cpus = ""
    if options.get("cpus-per-rank"):
        # srun takes it from the allocation no longer, since Slurm 22.05.
        cpus = f"\nexport SRUN_CPUS_PER_TASK={options.get('cpus-per-rank')}"
    return _TEMPLATE.format(
        script=SCRIPT,
        directives="\n".join(f"#SBATCH {directive}" for directive in directives),
        output=OUTPUT,
        log=LOG,
        exit_code=EXIT_CODE,
        python=shlex.join(python_command()),
        python_folder=shlex.quote(str(Path(sys.executable).parent)),
        job_folder=shlex.quote(str(job_folder.relative_to(store))),
        store=shlex.quote(str(store)),
        working_folder=shlex.quote(str(Path.cwd())),
        cpus=cpus,
        port_base=PORT_BASE,
        port_span=PORT_SPAN - STARTS,
        starts=STARTS,
        verb=command.verb,
        first=shlex.join(command.first),
        again=shlex.join(command.again),
        retries=" ".join(str(number) for number in range(1, RETRIES + 1)),
    )

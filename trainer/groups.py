"""Whether prompt groups fit the batch; needs no library, so that a config is refused before anything is loaded."""

from __future__ import annotations

from distillknob.rewards.errors import UserError


def check_groups(*, processes: int, per_device_batch: int, accumulation: int, group: int, prompts: int | None = None) -> str:
    """Says how a generation batch is made of groups, or raises UserError with the sizes that would be valid.

    `processes` × `per_device_batch` × `accumulation` (or steps per generation) completions are generated at a time; they must be a
    whole number of groups of `group` completions. `prompts`: size of the data set, where it is known.
    """
    batch = processes * per_device_batch * accumulation
    if group < 2:
        raise UserError(f"num_generations: {group} is too small: a group needs at least 2 generations to have a spread")
    if batch % group:
        valid = [n for n in range(2, batch + 1) if batch % n == 0]
        raise UserError(
            f"num_generations: {group} does not divide the generation batch of {batch} ({processes} processes × {per_device_batch} "
            f"per device × {accumulation} accumulation steps); valid sizes: {valid}"
        )
    at_a_time = batch // group
    said = f"ok: generation batch {batch} = {at_a_time} prompt{'s' if at_a_time > 1 else ''} x {group}"
    if prompts is None:
        return said
    if prompts < at_a_time:
        raise UserError(f"train data: {prompts} prompts do not fill one generation batch of {at_a_time} prompts: lower the batch")
    left = prompts % at_a_time
    return f"{said}; {left} of {prompts} prompts left over at the end of each pass over the data" if left else said

"""Index arithmetic of the deduplicating dispatch: which rows must be sent, each once, and where choices find theirs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pairs:
    """The distinct pairs of a slot (where to) and an item (what) among many choices, in order of slot, then item.

    Attributes:
        items: ``(p,)``, int64: the item of each pair: the rows to send.
        per_slot: pairs of each slot.
        pair_of_choice: ``(c,)``, int64: the pair of each choice.
        order: ``(c,)``, int64: the choices in order of pair; those of one pair stay in their order.
        place_in_slot: ``(c,)``, int64, for the choices in that order: the place of their pair among its slot's.
        choices_per_slot: choices of each slot.
    """

    items: torch.Tensor
    per_slot: tuple[int, ...]
    pair_of_choice: torch.Tensor
    order: torch.Tensor
    place_in_slot: torch.Tensor
    choices_per_slot: tuple[int, ...]


def distinct_pairs(slot_of_choice: torch.Tensor, item_of_choice: torch.Tensor, slots: int, items: int) -> Pairs:
    """Pairs of choices given by slot, below ``slots``, and item, below ``items``: shape ``(c,)`` each, int64."""
    key = slot_of_choice * items + item_of_choice
    present = torch.zeros(slots * items, dtype=torch.bool, device=key.device)
    present[key] = True
    place = present.cumsum(0) - 1
    pair_of_choice = place[key]
    pairs_of_slot = present.view(slots, items).sum(1)
    first_of_slot = pairs_of_slot.cumsum(0) - pairs_of_slot
    order = torch.argsort(pair_of_choice, stable=True)
    return Pairs(
        items=present.nonzero().flatten() % max(items, 1),
        per_slot=tuple(pairs_of_slot.tolist()),
        pair_of_choice=pair_of_choice,
        order=order,
        place_in_slot=(pair_of_choice - first_of_slot[slot_of_choice])[order],
        choices_per_slot=tuple(torch.bincount(slot_of_choice, minlength=slots).tolist()),
    )


def starts(counts: tuple[int, ...]) -> list[int]:
    """Where each part begins, if parts of these lengths follow each other."""
    first, begin = 0, []
    for count in counts:
        begin.append(first)
        first += count
    return begin


def absolute(place_in_part: torch.Tensor, parts: tuple[int, ...], lengths: tuple[int, ...]) -> torch.Tensor:
    """Places within parts to places in all of them together.

    Args:
        place_in_part: ``(c,)``, int64, sorted by part.
        parts: how many of them are in each part.
        lengths: of the parts.
    """
    begin = torch.tensor(starts(lengths), device=place_in_part.device)
    return place_in_part + begin.repeat_interleave(torch.tensor(parts, device=place_in_part.device))

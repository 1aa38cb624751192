"""The shape of a mesh of pipeline, data and expert parallelism, and how ranks are dealt to its places."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MeshShape:
    """``pp * dp * ep`` places, from the slowest to the fastest index, as a plan's ``mesh`` has them.

    Ranks that share experts are neighbours in rank, and with that on a node as far as they fit;
    pipeline stages are farthest apart, since they have the least to say to each other.

    Attributes:
        pp: pipeline ranks. dp: copies of the experts. ep: ranks that share them.

    Raises:
        ValueError: a number below 1.
    """

    pp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("pp", "dp", "ep"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise ValueError(f"mesh: {name} must be a whole number above 0, not {getattr(self, name)!r}")

    @property
    def world(self) -> int:
        """Number of places."""
        return self.pp * self.dp * self.ep

    @property
    def data_width(self) -> int:
        """Ranks that a batch is split over: those of one pipeline stage."""
        return self.dp * self.ep

    @property
    def sizes(self) -> dict[str, int]:
        """Of the axes by name, slowest first."""
        return {"pp": self.pp, "dp": self.dp, "ep": self.ep}

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """The indices ``(pp, dp, ep)`` of a rank."""
        return rank // self.data_width, rank // self.ep % self.dp, rank % self.ep

    def rank(self, pp: int, dp: int, ep: int) -> int:
        """The rank at these indices."""
        return (pp * self.dp + dp) * self.ep + ep

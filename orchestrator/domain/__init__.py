"""The nouns: frozen data, no I/O."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """What every noun is: immutable, and strict about what it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")

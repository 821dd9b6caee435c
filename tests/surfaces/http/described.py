"""The description of the API as it is shipped; `make openapi` writes it."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.surfaces.http.api import API_ENDPOINTS
from orchestrator.surfaces.http.openapi import description

SHIPPED = Path(__file__).parents[3] / "orchestrator" / "surfaces" / "http" / "openapi.json"


def described() -> str:
    return json.dumps(description(API_ENDPOINTS), indent=1) + "\n"


if __name__ == "__main__":
    SHIPPED.write_text(described())

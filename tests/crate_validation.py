"""Validates a crate with roc-validator, without the network.

The validator wants the JSON-LD context of RO-Crate 1.1 from its address. The rocrate library contains that of 1.3, which
differs, for what a Workflow Run Crate says, in the names of the Bioschemas terms and of sha256; with those of 1.1 it is put
in the validator's own cache.
"""

import io
import json
from importlib.resources import files
from pathlib import Path

from requests.adapters import HTTPAdapter
from requests_cache import CachedSession
from rocrate_validator import services
from rocrate_validator.models import Severity
from urllib3 import HTTPResponse

ADDRESS = "https://w3id.org/ro/crate/1.1/context"
BIOSCHEMAS = "https://bioschemas.org/"
TERMS = {name: BIOSCHEMAS + name for name in ("ComputationalWorkflow", "FormalParameter")}
TERMS |= {name: f"{BIOSCHEMAS}ComputationalWorkflow#{name}" for name in ("input", "output")}


def issues(crate: Path, profile: str, severity: str, cache: Path) -> list[str]:
    """What a validation finds.

    Args:
        crate: the zip file.
        profile: e.g. `workflow-run-crate`; those that it extends are checked too.
        severity: `REQUIRED` or `RECOMMENDED`, and what is graver.
        cache: a folder for the validator's cache.
    """
    _fill(cache)
    settings = services.ValidationSettings(
        rocrate_uri=str(crate),
        profile_identifier=profile,
        requirement_severity=getattr(Severity, severity),
        offline=True,
        cache_path=str(cache / "http"),
    )
    result = services.validate(settings)
    return [f"{issue.check.identifier}: {issue.message}" for issue in result.get_issues(getattr(Severity, severity))]


class _Bundled(HTTPAdapter):
    """Answers every request with the context."""

    def send(self, request, **_):
        context = json.loads((files("rocrate") / "data/ro-crate.jsonld").read_text(encoding="utf-8"))
        context["@context"].pop("sha256")
        context["@context"].update(TERMS)
        body, form = io.BytesIO(json.dumps(context).encode()), {"Content-Type": "application/ld+json"}
        return self.build_response(request, HTTPResponse(body, form, status=200, preload_content=False))


def _fill(cache: Path) -> None:
    session = CachedSession(str(cache / "http"), backend="sqlite", expire_after=-1)
    session.mount("https://", _Bundled())
    assert session.get(ADDRESS).json()["@context"]

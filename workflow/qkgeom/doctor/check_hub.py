"""Whether the models of the run can be read from the model hub: is it there, is the token good, are models gated."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from qkgeom.doctor.case_settings import models_of, settings_of, to_fetch
from qkgeom.doctor.finding import Case, Finding, error, fault, ok, warning
from qkgeom.doctor.runner import in_threads
from qkgeom.errors import AccessRefused, ModelFault, QkgeomError, TransientFault, UsageError
from qkgeom.sources import on_hub
from qkgeom.sources.base import choose_adapter, choose_files
from qkgeom.sources.hub import require_access
from qkgeom.sources.hub_faults import Kind, fault_for, public_endpoint, require_endpoint, said, status_of
from qkgeom.sources.hub_many import SLOTS

if TYPE_CHECKING:
    from qkgeom.registry import Model

PATIENCE = 4.0  # seconds for one answer of the hub
Question = tuple[str, bool]  # an address, and whether it is an adapter's


def examine(case: Case) -> Iterator[Finding]:
    """Asks once whether the hub is there; if so, about the token and, several at a time, about every model."""
    for noisy in ("qkgeom", "huggingface_hub"):
        logging.getLogger(noisy).setLevel(logging.ERROR)  # what they warn of is told here
    settings = settings_of(case)
    rows, wrong = to_fetch(case, models_of(settings))
    questions, nowhere = _questions(rows)
    bad = warning if settings.allow_missing else fault
    for model, found in (wrong | nowhere).items():
        tell = fault if isinstance(found, UsageError) else bad  # the workflow does not even start with a wrong table
        yield tell("models", f"{model}: {found.what}", found.fix or "correct its row in workflow/models.tsv")
    if not questions:
        yield ok("hub", f"not needed: preset {settings.preset} has nothing to fetch from it")
        return
    try:
        require_endpoint()
    except UsageError as found:
        yield error("hub", found, "correct HF_ENDPOINT, or unset it")
        return
    from huggingface_hub import constants

    if not constants.HF_HUB_OFFLINE:
        finding = _reached(next(iter(questions))[0])
        yield finding
        if finding.fix:
            return
        soon = time.monotonic() + case.left(PATIENCE)  # the client itself would wait for ever
        answer = in_threads(lambda _: _token(), ["token"], 1, soon).get("token")
        yield answer or warning("token", "the hub does not say in time whose it is", "ask again")
    answers = in_threads(_ask, questions, SLOTS, case.deadline - 0.3)
    yield from _models(questions, answers, bad, offline=constants.HF_HUB_OFFLINE)


def _questions(rows: list[Model]) -> tuple[dict[Question, list[str]], dict[str, QkgeomError]]:
    """What is asked for, with the models that need it, of a series the last checkpoint; and why others lead nowhere, by id."""
    nowhere: dict[str, QkgeomError] = {}
    questions: dict[Question, list[str]] = {}
    for row in rows:
        try:
            for uri, is_adapter in ((row.uris[-1], False), (row.adapter, True)):
                if uri and (address := on_hub(uri)):
                    questions.setdefault((address, is_adapter), []).append(row.model)
        except ModelFault as found:
            nowhere[row.model] = found
    return questions, nowhere


def _reached(address: str) -> Finding:
    """One question, asked once."""
    from huggingface_hub import HfApi

    repo = address.partition("@")[0]
    try:
        HfApi().model_info(repo, timeout=PATIENCE)
    except Exception as found:
        known = fault_for(found, repo, repo)
        if known is None:
            raise
        if isinstance(known, TransientFault):
            return fault("hub", f"{known.what} ({public_endpoint()}: {said(found)})", known.fix)
        # A hub says why; only of a repository that is missing, to someone without a token, it says no more than 401.
        if status_of(found) != 401 and "X-Error-Code" not in found.response.headers:
            what, fix = Kind.STRANGER.value
            return fault("hub", f"{what} ({public_endpoint()}: {said(found)})", fix)
    return ok("hub", f"{public_endpoint()} answers")


def _token() -> Finding:
    from huggingface_hub import get_token, whoami
    from huggingface_hub.errors import HfHubHTTPError

    if get_token() is None:
        return ok("token", "none: gated models cannot be read, and the hub's rate limit is lower")
    try:
        return ok("token", f"of {whoami()['name']}")
    except Exception as refusal:
        if isinstance(refusal, HfHubHTTPError) and refusal.response.status_code in (401, 403):
            return fault("token", "the hub refuses it", "set HF_TOKEN to a valid one, or unset it (or run `hf auth login`)")
        return warning("token", f"the hub does not say whose it is: {said(refusal)}", "ask again")


def _ask(question: Question) -> Exception | None:
    address, is_adapter = question
    try:
        require_access(address, choose_adapter if is_adapter else choose_files)
    except Exception as found:
        return found
    return None


def _models(
    questions: dict[Question, list[str]],
    answers: dict[Question, Exception | None],
    bad: Callable[[str, str, str], Finding],
    *,
    offline: bool,
) -> Iterator[Finding]:
    """One line for each way in which models are out of reach."""
    gated = [each for each in questions if isinstance(answers.get(each), AccessRefused)]
    missing = [each for each in questions if isinstance(answers.get(each), ModelFault) and each not in gated]
    later = [each for each in questions if each not in answers or (answers[each] and each not in [*gated, *missing])]

    def models(which: list[Question]) -> str:
        return ", ".join(dict.fromkeys(model for each in which for model in questions[each]))

    if gated:
        pages = ", ".join(dict.fromkeys(f"{public_endpoint()}/{address.partition('@')[0]}" for address, _ in gated))
        fix = f"accept the licences at {pages}, then set HF_TOKEN to a token that may read them (or run `hf auth login`)"
        yield bad("gated", f"access is refused to {models(gated)}", fix)
    if missing:
        which = "; ".join(f"{models([each])}: {answers[each].what}" for each in missing)
        yield bad("models", which, "correct the rows in workflow/models.tsv, or their pins (`qkgeom lock`)")
    if later and offline:
        fix = "unset HF_HUB_OFFLINE, or fetch them where there is a network, with the same HF_HOME"
        yield bad("models", f"HF_HUB_OFFLINE is set, and the hub's cache does not hold {models(later)}", fix)
    elif later:
        told = dict.fromkeys(str(answers[each]).partition("\n")[0] for each in later if each in answers)
        late = sum(each not in answers for each in later)
        waits = [f"no answer in time about {late} of {len(questions)} repositories"] if late else []
        found = "; ".join([*waits, *told])
        yield warning("models", found, "`python -m qkgeom plan` asks all of them, and names those that cannot be read")
    if not (gated or missing or later):
        where = "in the hub's cache (HF_HUB_OFFLINE is set)" if offline else "there, and may be read"
        yield ok("models", f"all {len(questions)} repositories to fetch from are {where}")

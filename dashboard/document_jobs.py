"""Jobs that explain a document by several methods: those of one pass share the pass of each window.

Every question keeps a job of its own, so that one can be asked again, or another method added, without the rest. The
first of those asked together that has its turn answers for all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from dashboard import evidence_cache
from dashboard.evidence_jobs import Job, Progress

if TYPE_CHECKING:
    from analysis.evidence.document import Question
    from analysis.evidence.explanation import Explanation
    from analysis.evidence.methods import Method
    from analysis.evidence.targets import Target
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

Asked = tuple["Method", "Target | None", evidence_cache.Options]
"""A method, what it is to explain, and its options beside the defaults."""


def job_key(chosen: evidence_cache.Subject, asked: Asked) -> Hashable:
    """Under which key the job of a question to a document is kept."""
    method, target, options = asked
    return "document", evidence_cache.job_key(chosen, method.key, target, options)


def requested(chosen: evidence_cache.Subject, asked: Sequence[Asked]) -> list[Job]:
    """The job of each question, started where nobody has asked before."""
    from analysis.evidence.document import Question

    jobs = evidence_cache.jobs()
    keys = [job_key(chosen, each) for each in asked]
    questions = [Question(method.key, target, dict(options)) for method, target, options in asked]
    shared = [
        place
        for place, (key, (method, *_)) in enumerate(zip(keys, asked, strict=True))
        if method.cost == "shared" and jobs.find(key) is None
    ]
    traced = chosen.traced
    together = Together(
        traced.model,
        traced.inputs,
        tuple(questions[place] for place in shared),
        tuple(keys[place] for place in shared),
    )
    found = []
    for place, key in enumerate(keys):
        group, inside = together, place
        if place in shared:
            inside = shared.index(place)
        else:
            group, inside = Together(traced.model, traced.inputs, (questions[place],), (key,)), 0
        work = partial(group.answer, inside)
        found.append(jobs.request(key, evidence_cache.in_turns(chosen.shared, work)))
    return found


@dataclass(eq=False)
class Together:
    """Questions that are answered by one walk over the windows.

    Attributes:
        questions: those; ``keys``: of their jobs.
        found: answers and refusals by place, once they are there.
    """

    model: LoadedModel
    inputs: Inputs
    questions: tuple[Question, ...]
    keys: tuple[Hashable, ...]
    found: dict[int, Explanation | Exception] = field(default_factory=dict)
    _walking: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, place: int, progress: Progress) -> Explanation:
        """The answer to one question, computed with all the others unless it is there.

        A job that has its turn while another walks (which gave way to it) walks for itself alone.

        Raises:
            whatever its method refuses with.
        """
        if place not in self.found:
            first = self._walking.acquire(blocking=False)
            try:
                self._walk(list(range(len(self.questions))) if first else [place], progress)
            finally:
                if first:
                    self._walking.release()
        found = self.found[place]
        if isinstance(found, Exception):
            raise found
        return found

    def _walk(self, places: Sequence[int], progress: Progress) -> None:
        from analysis.evidence.document import explain_document_by

        refused: dict[int, Exception] = {}
        asked = [self.questions[place] for place in places]

        def refuse(question: Question, error: Exception) -> None:
            refused[next(place for place in places if self.questions[place] is question)] = error

        def tell(done: float) -> None:
            progress(done)
            for place in places:
                job = evidence_cache.jobs().find(self.keys[place])
                if job is not None and job.active and not job.stopping:
                    job.report(done)

        answers = explain_document_by(asked, self.model, self.inputs, progress=tell, refused=refuse)
        for place, answer in zip(places, answers, strict=True):
            self.found[place] = refused[place] if answer is None else answer

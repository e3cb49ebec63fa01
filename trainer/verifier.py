"""How the lab's reward model learns to compare (ours): a verdict on each token beside the one on the whole text.

One verdict a text taught it the format only (docs/LOG.md): to see one wrong letter, a model has to bring together what should stand
at a place and what stands there, and as long as it has neither, the verdict doesn't say which. So there are three more lessons at
each token of a completion: from the first fresh layer, which token the teacher expected there, and which one is there; from the
last layer, whether the teacher would write it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

WOULD_WRITE = 0.02  # the teacher's probability from which on a token counts as one that it would write
SHARE = 0.3  # weight of the two lessons on which token


class Lesson(torch.nn.Module):
    """The classifier with the frozen teacher and two heads that are needed for learning only."""

    def __init__(self, classifier: Any, teacher: Any) -> None:
        super().__init__()
        self.classifier, self.first_fresh = classifier, teacher.config.num_hidden_layers + 1
        self.teacher = teacher.eval().requires_grad_(False)
        width, size = teacher.config.hidden_size, teacher.config.vocab_size
        self.expected, self.present = torch.nn.Linear(width, size), torch.nn.Linear(width, size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor, good: Tensor) -> dict[str, Tensor]:
        """The loss, nats. `input_ids`, `attention_mask`: B×T, padded on the left, each row ends in its end token; `labels`: B×T, 1
        at the completion's tokens, −100 elsewhere; `good`: B, 1 where the whole completion is right, else 0."""
        with torch.no_grad():
            logps_B_T_V = self.teacher(input_ids, attention_mask=attention_mask).logits[:, :-1].log_softmax(-1)
        ids_B_T, chosen_B_T = input_ids[:, 1:], labels[:, 1:] == 1  # what the teacher says at t − 1 is about the token at t
        would_B_T = logps_B_T_V.gather(-1, ids_B_T[..., None])[..., 0].exp() > WOULD_WRITE
        should_B_T = torch.where(would_B_T, ids_B_T, logps_B_T_V.argmax(-1))
        states = self.classifier.base_model(input_ids, attention_mask=attention_mask, output_hidden_states=True)
        logits_B_T = self.classifier.score(states.last_hidden_state)[..., 0]
        first_N_H = states.hidden_states[self.first_fresh][:, 1:][chosen_B_T]
        verdict = binary_cross_entropy_with_logits(logits_B_T[:, -1], good.float())
        tokens = binary_cross_entropy_with_logits(logits_B_T[:, 1:][chosen_B_T], would_B_T[chosen_B_T].float())
        which = cross_entropy(self.expected(first_N_H), should_B_T[chosen_B_T]) + cross_entropy(
            self.present(first_N_H), ids_B_T[chosen_B_T]
        )
        return {"loss": verdict + tokens + SHARE * which}

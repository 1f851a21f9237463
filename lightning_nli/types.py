"""Words that every layer shares. Imports neither torch nor polars."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

IGNORE_INDEX = -100
"""Class index of a segment that is not scored (the value `torch.nn.functional.cross_entropy` ignores)."""


class UserError(ValueError):
    """A mistake in what the user gave: shown as a line on standard error, exit code 2, no traceback."""


class Split(StrEnum):
    """A corpus' published split."""

    TRAIN = "train"
    DEV = "dev"
    TEST = "test"


class Label(StrEnum):
    """Every label name of the three systems. Integers never leave `data/readers.py`: sources disagree on order."""

    NON_ENTAILMENT = "non_entailment"
    ENTAILMENT = "entailment"
    NEUTRAL = "neutral"
    CONTRADICTION = "contradiction"
    REFUTE = "refute"
    SUPPORT = "support"
    UNRELATED = "unrelated"


@dataclass(frozen=True, slots=True)
class LabelScheme:
    """The ordered labels of a task; a label's class index is its place here.

    Attributes:
        name: How configs name the scheme.
        labels: Label names in class order.
        entailed: The label that says the premise supports the hypothesis.
        unsupported: The label of a pair whose premise was swapped for one that does not support the hypothesis.
    """

    name: str
    labels: tuple[Label, ...]
    entailed: Label
    unsupported: Label

    @property
    def names(self) -> list[str]:
        return [label.value for label in self.labels]

    def index(self, label: Label | str) -> int:
        """Class index of a label.

        Raises:
            ValueError: the label is not of this scheme.
        """
        return self.labels.index(Label(label))


BINARY = LabelScheme("binary", (Label.NON_ENTAILMENT, Label.ENTAILMENT), Label.ENTAILMENT, Label.NON_ENTAILMENT)
THREE_WAY = LabelScheme(
    "three_way", (Label.ENTAILMENT, Label.NEUTRAL, Label.CONTRADICTION), Label.ENTAILMENT, Label.NEUTRAL
)
WILLS = LabelScheme("wills", (Label.REFUTE, Label.SUPPORT, Label.UNRELATED), Label.SUPPORT, Label.UNRELATED)
SCHEMES: dict[str, LabelScheme] = {scheme.name: scheme for scheme in (BINARY, THREE_WAY, WILLS)}

_MEANINGS = {Label.SUPPORT: Label.ENTAILMENT, Label.REFUTE: Label.CONTRADICTION, Label.UNRELATED: Label.NEUTRAL}


def fold_labels(source: LabelScheme, target: LabelScheme) -> dict[Label, Label]:
    """Each label of `source` as the label of `target` that says the same or, with two labels, includes it.

    Raises:
        UserError: `target` tells apart what `source` does not.
    """
    if source == target:
        return {label: label for label in source.labels}
    if target == BINARY:
        return {label: target.entailed if label is source.entailed else target.unsupported for label in source.labels}
    if source == BINARY:
        raise UserError(f"labels {source.names} cannot become {target.names}: two do not make three; fold to 'binary'")
    back = {meaning: label for label, meaning in _MEANINGS.items()}
    return {label: _MEANINGS[label] if label in _MEANINGS else back[label] for label in source.labels}


SEGMENT_NAMES = ("premise", "hypothesis", "condition")

DOMAINS: dict[str, str] = {
    "administrative_organization": "Bộ máy hành chính",
    "state_finance": "Tài chính nhà nước",
    "culture_society": "Văn hóa - Xã hội",
    "natural_resources_environment": "Tài nguyên - Môi trường",
    "real_estate": "Bất động sản",
    "construction_urban_planning": "Xây dựng - Đô thị",
    "commercial_law": "Thương mại",
    "sports_health": "Thể thao - Y tế",
    "education": "Giáo dục",
    "tax_fees": "Thuế - Phí - Lệ Phí",
    "transportation": "Giao thông - Vận tải",
    "labor_wages": "Lao động - Tiền lương",
    "information_technology": "Công nghệ thông tin",
    "investment": "Đầu tư",
    "enterprise": "Doanh nghiệp",
    "import_export": "Xuất nhập khẩu",
    "civil_rights": "Quyền dân sự",
    "banking_monetary": "Tiền tệ - Ngân hàng",
    "legal_services": "Dịch vụ pháp lý",
    "insurance": "Bảo hiểm",
    "procedural_law": "Thủ tục Tố tụng",
    "administrative_violations": "Vi phạm hành chính",
    "accounting_auditing": "Kế toán - Kiểm toán",
    "criminal_liability": "Trách nhiệm hình sự",
    "intellectual_property": "Sở hữu trí tuệ",
    "securities": "Chứng khoán",
    "other": "Lĩnh vực khác",
}
"""The 27 fields of law of ViLegalNLI (Table 10): slug -> value in the published files."""

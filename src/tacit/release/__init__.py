"""What may leave: the bundle, and the card that says what it promises."""

from tacit.release.bundle import release
from tacit.release.load import Bundle, load_bundle
from tacit.release.verify import BundleInfo, inspect_bundle

__all__ = ["Bundle", "BundleInfo", "inspect_bundle", "load_bundle", "release"]

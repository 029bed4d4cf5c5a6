"""One machine as the world of the experiment: launches and visits are processes."""

from specschedule.adapters.local.command import Command
from specschedule.adapters.local.ledger import FolderRefused, Ledger
from specschedule.adapters.local.world import LocalWorld, OutOfTime

__all__ = ["Command", "FolderRefused", "Ledger", "LocalWorld", "OutOfTime"]

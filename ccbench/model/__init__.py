"""What this machine should give: machines with numbers, prices of schedules, bounds, calibration."""

from ccbench.model.machine import Machine, load_machine, machine_names, save_machine
from ccbench.model.prediction import Prediction
from ccbench.model.pricing import Prices, predict, price_sizes

__all__ = [
    "Machine",
    "Prediction",
    "Prices",
    "load_machine",
    "machine_names",
    "predict",
    "price_sizes",
    "save_machine",
]

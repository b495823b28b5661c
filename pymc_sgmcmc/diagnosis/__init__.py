"""Whether draws can be trusted: one verdict on Stein identities, chains, thermostat and anchor."""

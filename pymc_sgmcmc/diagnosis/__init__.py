"""Whether draws can be trusted: Stein identities, chains, thermostat and anchor, in one verdict."""

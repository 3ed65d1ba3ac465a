"""hardware: devices, links and clusters, with the data sheets and presets that they come from."""

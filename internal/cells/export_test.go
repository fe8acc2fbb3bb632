package cells

// Overrides returns the number of repositories that are placed by an override.
func (d *Directory) Overrides() int {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return len(d.overrides)
}

package gitrepo

// Check reports what [OpenVolume] would refuse of the settings of the network. It connects to nothing.
func (c NetConfig) Check() error {
	n, err := newNetwork(c)
	if err != nil {
		return err
	}
	n.close()
	return nil
}

package signatures

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"lockstep/events"
	"lockstep/internal/credential"
	"lockstep/internal/git/signature"
	"lockstep/internal/watch"
)

// verifiesAll reports whether all new commits are verified, not only the last one.
func verifiesAll(w watch.Watch) bool { return !events.Depth(1).Covers(w.Depth) }

// trusted are the keys that a credential has, or why they cannot be used.
type trusted struct {
	files   signature.Files
	invalid string
}

// keysOf returns the keys of a credential. They are read once for each sync or poll.
func (p *part) keysOf(name string) (trusted, error) {
	if keys, ok := p.keys[name]; ok {
		return keys, nil
	}
	files, err := readKeys(p.credentials, name)
	keys := trusted{files: files}
	switch {
	case events.DispositionOf(err) == events.Permanent:
		keys.invalid = err.Error()
	case err != nil:
		return trusted{}, err
	}
	p.keys[name] = keys
	return keys, nil
}

// readKeys returns the keys of a credential, all of the same version.
func readKeys(credentials *credential.Store, name string) (signature.Files, error) {
	texts, err := credentials.PublicKeys(name)
	if err != nil {
		return signature.Files{}, err
	}
	keys := signature.Files{
		OpenPGPKeys: texts["openpgpKeys"], AllowedSigners: texts["allowedSigners"], RevokedKeys: texts["revokedKeys"],
	}
	if keys.OpenPGPKeys == "" && keys.AllowedSigners == "" {
		return signature.Files{}, events.Errorf(events.Permanent, events.ClassConfig,
			"credential %q has no keys to verify signatures with; add %s or %s", name,
			credentials.Where(name, "allowedSigners"), credentials.Where(name, "openpgpKeys"))
	}
	return keys, nil
}

// Rules implements [ext.Admitter]: it returns a digest of the rules for a ref, and of their keys.
func (p *part) Rules(ref events.Ref, isDefault bool) (string, error) {
	p.rules = slices.DeleteFunc(slices.Clone(p.watches), func(w watch.Watch) bool { return !w.Selects(ref, isDefault) })
	if len(p.rules) == 0 {
		return "", nil
	}
	slices.SortFunc(p.rules, func(a, b watch.Watch) int { // the strictest first
		x, y := Of(a), Of(b)
		return cmp.Or(-cmp.Compare(x.Verify, y.Verify), cmp.Compare(a.App, b.App), cmp.Compare(x.Keys, y.Keys))
	})
	sum, used := sha256.New(), map[string]trusted{}
	for _, w := range p.rules {
		o := Of(w)
		fmt.Fprintf(sum, "%q %s %q %v %v\n", w.App, o.Verify, o.Keys, o.NoRewind, verifiesAll(w))
		if o.Verify == VerifyOff {
			continue
		}
		keys, err := p.keysOf(o.Keys)
		if err != nil {
			return "", err
		}
		used[o.Keys] = keys
	}
	for _, name := range slices.Sorted(maps.Keys(used)) {
		fmt.Fprintf(sum, "%q %q %q\n", name, used[name].files, used[name].invalid)
	}
	return hex.EncodeToString(sum.Sum(nil)[:12]), nil
}

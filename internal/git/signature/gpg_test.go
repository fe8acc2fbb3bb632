package signature_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/internal/git/signature"
	"lockstep/internal/testenv"
)

// TestOpenPGPAgainstGit compares verdicts on OpenPGP signatures with those of git verify-commit and verify-tag, with real gpg.
func TestOpenPGPAgainstGit(t *testing.T) {
	testenv.Long(t)
	w := newWorkshop(t, signature.SHA1)
	const then = "--faked-system-time 20220101T000000"
	alice, bob := w.gpgKey("Alice <alice@example.com>", "ed25519", "never"), w.gpgKey("Bob <bob@example.com>", "rsa2048", "never")
	expired := w.gpgKey("Expired <e@example.com>", "ed25519", "30d", strings.Fields(then)...)
	revoked := w.gpgKey("Revoked <r@example.com>", "ed25519", "never")
	by := func(key string, args ...string) signing {
		return signing{format: "openpgp", key: key, gpg: strings.Join(args, " ")}
	}
	good, goodRSA := w.commit(by(alice), "good"), w.commit(by(bob), "rsa")
	ofExpired, ofRevoked := w.commit(by(expired, then), "expired"), w.commit(by(revoked), "revoked")
	ring := w.export(alice, bob, expired)
	beforeRevocation := w.export(revoked)
	w.revoke(revoked)
	afterRevocation := w.export(revoked)

	subkeys := w.gpgKey("Sub <s@example.com>", "ed25519", "never")
	w.run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-add-key", subkeys, "ed25519", "sign", "never")
	ofSubkey := w.commit(by(subkeys), "subkey") // gpg prefers the subkey
	withSubkey := w.export(subkeys)
	w.run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-add-key", subkeys, "cv25519", "encr", "never")

	trusted := signature.Files{OpenPGPKeys: ring}
	const name = "Alice <alice@example.com>"
	w.commit(signing{}, "base")
	w.run("git", "-C", w.repo, "checkout", "-q", "-b", "side")
	side := w.tag(by(bob), "side")
	w.commit(signing{}, "on the side")
	w.tag(by(bob), "side2")
	w.run("git", "-C", w.repo, "checkout", "-q", "-")
	w.commit(signing{}, "on main")
	config, env := by(alice).args(w)
	if _, err := w.command(env, nil, "git", append(config, "merge", "-q", "--no-ff", "-S", "-m", "merge", "side2")...); err != nil {
		t.Fatal(err)
	}
	merge := w.run("git", "-C", w.repo, "rev-parse", "HEAD")
	if _, content := w.content(merge); !strings.Contains(string(content), "\nmergetag ") {
		t.Fatalf("the merge has no mergetag:\n%s", content)
	}
	double := func(text string) string { // a second signature header
		_, rest, _ := strings.Cut(text, "\ngpgsig ")
		sig, _, _ := strings.Cut(rest, "\n\n")
		return strings.Replace(text, "\n\n", "\ngpgsig "+sig+"\n\n", 1)
	}
	for name, tc := range map[string]struct {
		id         string
		files      signature.Files
		by, reason string
	}{
		"valid":                 {good, trusted, name, ""},
		"rsa":                   {goodRSA, trusted, "Bob <bob@example.com>", ""},
		"two blocks":            {goodRSA, signature.Files{OpenPGPKeys: w.export(alice) + "\n" + w.export(bob) + "\n"}, "Bob <bob@example.com>", ""},
		"unknown key":           {good, signature.Files{OpenPGPKeys: w.export(bob)}, "", "is not trusted"},
		"expired key":           {ofExpired, trusted, "", "is expired"},
		"revoked key":           {ofRevoked, signature.Files{OpenPGPKeys: afterRevocation}, "", "is revoked"},
		"before its revocation": {ofRevoked, signature.Files{OpenPGPKeys: beforeRevocation}, "Revoked <r@example.com>", ""},
		"expired signature":     {w.commit(by(bob, "--default-sig-expire 1d --ignore-time-conflict", then), "short"), trusted, "", ""},
		"subkey":                {ofSubkey, signature.Files{OpenPGPKeys: withSubkey}, "Sub <s@example.com>", ""},
		"sha1":                  {w.commit(by(bob, "--digest-algo SHA1"), "sha1"), trusted, "", "its signature uses SHA-1"},
		"sha512":                {w.commit(by(bob, "--digest-algo SHA512"), "sha512"), trusted, "Bob <bob@example.com>", ""},
		"text mode":             {w.commit(by(alice, "--textmode"), "text\r\nmode"), trusted, name, ""},
		"tampered":              {w.altered(good, cut("\n\ngood", "\n\nevil")), trusted, "", "does not match"},
		"two headers":           {w.altered(good, double), trusted, "", "several signatures"},
		"two signatures":        {w.commit(by(bob, "--local-user", alice), "two"), trusted, "", "several signatures"},
		"merge with a mergetag": {merge, trusted, name, ""},
		"tampered mergetag":     {w.altered(merge, cut("\n tag side2", "\n tag side3")), trusted, "", "does not match"},
		"encoding":              {w.commit(signing{format: "openpgp", key: alice, config: []string{"i18n.commitEncoding=ISO-8859-1"}}, "gr\xfc\xdfe"), trusted, name, ""},
		"header of sha256":      {w.altered(good, cut("\n\ngood", "\ngpgsig-sha256 x\n y\n\ngood")), trusted, name, ""},
		"text after a tag":      {w.altered(side, func(s string) string { return s + "more\n" }), trusted, "", "text after"},
		"tag":                   {side, trusted, "Bob <bob@example.com>", ""},
		"no end of armor":       {w.altered(good, cut("-----END PGP SIGNATURE-----", "-----END PGP")), trusted, "", "cut off"},
		"empty armor":           {w.altered(good, emptyArmor), trusted, "", ""},
		"x509":                  {w.altered(good, func(s string) string { return strings.ReplaceAll(s, "PGP SIGNATURE", "SIGNED MESSAGE") }), trusted, "", "x509"},
	} {
		t.Run(name, func(t *testing.T) {
			in := *w
			in.t = t
			if tc.by == "" && tc.reason == "" {
				tc.reason = "signature"
			}
			in.check(tc.id, tc.files, tc.by, tc.reason)
		})
	}
}

func emptyArmor(text string) string {
	before, rest, _ := strings.Cut(text, "-----BEGIN PGP SIGNATURE-----")
	_, after, _ := strings.Cut(rest, "-----END PGP SIGNATURE-----")
	return before + "-----BEGIN PGP SIGNATURE-----\n \n -----END PGP SIGNATURE-----" + after
}

// revoke imports the revocation certificate that gpg made with a key.
func (w *workshop) revoke(key string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "gpg", "openpgp-revocs.d", key+".rev"))
	if err != nil {
		w.t.Fatal(err)
	}
	certificate := w.write("revocation", strings.Replace(string(text), ":-----BEGIN", "-----BEGIN", 1), 0o600)
	w.run("gpg", "--batch", "--quiet", "--import", certificate)
}

// TestSHA256AgainstGit compares verdicts in a repository with SHA-256 object IDs.
func TestSHA256AgainstGit(t *testing.T) {
	testenv.Long(t)
	w := newWorkshop(t, signature.SHA256)
	ed, alice := w.sshKey("ed", "-t", "ed25519"), w.gpgKey("Alice <alice@example.com>", "ed25519", "never")
	ssh := signature.Files{AllowedSigners: "alice " + w.public(ed)}
	gpg := signature.Files{OpenPGPKeys: w.export(alice)}
	bySSH, byGPG := signing{format: "ssh", key: ed}, signing{format: "openpgp", key: alice}
	good := w.commit(byGPG, "good")
	if _, content := w.content(good); !strings.Contains(string(content), "\ngpgsig-sha256 ") {
		t.Fatalf("no gpgsig-sha256:\n%s", content)
	}
	w.check(good, gpg, "Alice <alice@example.com>", "")
	w.check(w.commit(bySSH, "ssh"), ssh, "alice", "")
	w.check(w.altered(good, cut("\n\ngood", "\n\nevil")), gpg, "", "does not match")
	w.check(w.altered(good, cut("\ngpgsig-sha256 ", "\ngpgsig ")), gpg, "", "not signed")
	w.check(w.altered(good, cut("\n\ngood", "\ngpgsig x\n y\n\ngood")), gpg, "Alice <alice@example.com>", "")
	w.check(w.tag(byGPG, "v1"), gpg, "Alice <alice@example.com>", "")
	w.check(w.tag(bySSH, "v2"), ssh, "alice", "")
}

package signature_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/internal/git/signature"
	"lockstep/internal/testenv"
)

// workshop makes signed objects with real programs.
type workshop struct {
	t    *testing.T
	dir  string // short: gpg-agent's socket is in it
	repo string
	env  []string
	hash signature.Format
}

func newWorkshop(t *testing.T, hash signature.Format) *workshop {
	for _, program := range []string{"git", "gpg", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	dir, err := os.MkdirTemp("", "sig")
	if err != nil {
		t.Fatal(err)
	}
	w := &workshop{t: t, dir: dir, repo: filepath.Join(dir, "repo"), hash: hash}
	t.Cleanup(func() {
		homes, _ := filepath.Glob(filepath.Join(dir, "gpg*"))
		for _, home := range homes {
			_ = exec.Command("gpgconf", "--homedir", home, "--kill", "all").Run()
		}
		_ = os.RemoveAll(dir)
	})
	w.env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null", "GNUPGHOME="+w.home("gpg"), "TZ=UTC", "LC_ALL=C.UTF-8",
		"GIT_AUTHOR_NAME=A", "GIT_AUTHOR_EMAIL=a@example.com", "GIT_COMMITTER_NAME=C", "GIT_COMMITTER_EMAIL=c@example.com")
	w.run("git", "init", "-q", "--object-format="+string(hash), w.repo)
	w.write("gpg.sh", "#!/bin/sh\nexec gpg $GPG_ARGS \"$@\"\n", 0o755)
	return w
}

// home returns a folder for gpg's keys.
func (w *workshop) home(name string) string {
	dir := filepath.Join(w.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		w.t.Fatal(err)
	}
	return dir
}

func (w *workshop) write(name, text string, mode os.FileMode) string {
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func (w *workshop) command(env []string, stdin []byte, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Env, cmd.Stdin = append(w.env[:len(w.env):len(w.env)], env...), bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, err
}

func (w *workshop) run(name string, args ...string) string {
	w.t.Helper()
	out, err := w.command(nil, nil, name, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// gpgKey makes a key and returns its fingerprint. args are further arguments of gpg, such as --faked-system-time.
func (w *workshop) gpgKey(name, algorithm, expires string, args ...string) string {
	w.t.Helper()
	all := append([]string{"--batch", "--quiet", "--passphrase", "", "--no-tty"}, args...)
	w.run("gpg", append(all, "--quick-generate-key", name, algorithm, "sign,cert", expires)...)
	for line := range strings.Lines(w.run("gpg", "--with-colons", "--list-keys", name)) {
		if fields := strings.Split(line, ":"); fields[0] == "fpr" {
			return fields[9]
		}
	}
	w.t.Fatal("no fingerprint")
	return ""
}

func (w *workshop) export(keys ...string) string {
	return w.run("gpg", append([]string{"--armor", "--export"}, keys...)...)
}

// sshKey makes a key and returns its path.
func (w *workshop) sshKey(name string, args ...string) string {
	path := filepath.Join(w.dir, name)
	w.run("ssh-keygen", append([]string{"-q", "-N", "", "-f", path, "-C", name}, args...)...)
	return path
}

func (w *workshop) public(key string) string {
	text, err := os.ReadFile(key + ".pub")
	if err != nil {
		w.t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	return fields[0] + " " + fields[1]
}

// signing says how git signs.
type signing struct {
	format, key string   // "openpgp" or "ssh"; "" for no signature
	gpg         string   // arguments of gpg
	date        string   // defaults to 2024-01-02
	config      []string // of git
}

func (s signing) args(w *workshop) (config, env []string) {
	date := s.date
	if date == "" {
		date = "1704164645 +0000"
	}
	env = []string{"GPG_ARGS=" + s.gpg, "GIT_AUTHOR_DATE=" + date, "GIT_COMMITTER_DATE=" + date}
	config = []string{"-C", w.repo, "-c", "gpg.program=" + filepath.Join(w.dir, "gpg.sh")}
	if s.format != "" {
		config = append(config, "-c", "gpg.format="+s.format, "-c", "user.signingKey="+s.key)
	}
	for _, c := range s.config {
		config = append(config, "-c", c)
	}
	return config, env
}

// commit makes a commit and returns its ID.
func (w *workshop) commit(s signing, message string, args ...string) string {
	w.t.Helper()
	config, env := s.args(w)
	all := append(config, "commit", "-q", "--allow-empty", "-m", message)
	if s.format != "" {
		all = append(all, "-S")
	}
	if _, err := w.command(env, nil, "git", append(all, args...)...); err != nil {
		w.t.Fatal(err)
	}
	return w.run("git", "-C", w.repo, "rev-parse", "HEAD")
}

// tag makes an annotated tag and returns its ID.
func (w *workshop) tag(s signing, name string) string {
	w.t.Helper()
	config, env := s.args(w)
	kind := "-a"
	if s.format != "" {
		kind = "-s"
	}
	if _, err := w.command(env, nil, "git", append(config, "tag", kind, "-m", "a tag", name)...); err != nil {
		w.t.Fatal(err)
	}
	return w.run("git", "-C", w.repo, "rev-parse", "refs/tags/"+name)
}

func (w *workshop) content(id string) (signature.Kind, []byte) {
	kind := signature.Kind(w.run("git", "-C", w.repo, "cat-file", "-t", id))
	content, err := w.command(nil, nil, "git", "-C", w.repo, "cat-file", string(kind), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return kind, content
}

// altered stores an altered copy of an object.
func (w *workshop) altered(id string, alter func(string) string) string {
	w.t.Helper()
	kind, content := w.content(id)
	changed := alter(string(content))
	if changed == string(content) {
		w.t.Fatalf("object %s is not altered:\n%s", id, content)
	}
	out, err := w.command(nil, []byte(changed), "git", "-C", w.repo, "hash-object", "-w", "--literally", "-t", string(kind), "--stdin")
	if err != nil {
		w.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// verify asks git, with only the keys of files.
func (w *workshop) verify(id string, files signature.Files) (accepted bool, output string) {
	w.t.Helper()
	home := w.home("gpg" + fmt.Sprint(time.Now().UnixNano()))
	env := []string{"GNUPGHOME=" + home}
	if files.OpenPGPKeys != "" {
		if _, err := w.command(env, []byte(files.OpenPGPKeys), "gpg", "--quiet", "--batch", "--import"); err != nil {
			w.t.Fatal(err)
		}
	}
	args := []string{"-C", w.repo, "-c", "gpg.ssh.allowedSignersFile=" + w.write("allowed", files.AllowedSigners, 0o600)}
	if files.RevokedKeys != "" {
		args = append(args, "-c", "gpg.ssh.revocationFile="+w.write("revoked", files.RevokedKeys, 0o600))
	}
	kind, _ := w.content(id)
	_, err := w.command(env, nil, "git", append(args, "verify-"+string(kind), "-v", id)...)
	return err == nil, fmt.Sprint(err)
}

// check compares our verdict with git's. by is the expected signer, or "" and the expected reason.
func (w *workshop) check(id string, files signature.Files, by, reason string) {
	t := w.t
	t.Helper()
	keys, err := signature.ParseKeys(files)
	if err != nil {
		t.Fatal(err)
	}
	kind, content := w.content(id)
	o, err := signature.Parse(kind, content, w.hash)
	if err != nil {
		t.Fatal(err)
	}
	v := keys.Verify(o, time.Now())
	if v.By != by || !strings.Contains(v.Reason, reason) || (by == "") == v.Verified() || reason == "" && by == "" {
		t.Errorf("got %+v, want by %q, reason %q", v, by, reason)
	}
	for _, stricter := range []string{"its signature uses", "text after", "cut off"} { // than git
		if strings.HasPrefix(reason, stricter) {
			return
		}
	}
	if accepted, output := w.verify(id, files); accepted != v.Verified() {
		t.Errorf("git accepts: %v, we: %+v\n%s", accepted, v, output)
	}
}

func cut(from, to string) func(string) string {
	return func(text string) string { return strings.Replace(text, from, to, 1) }
}

// TestSSHAgainstGit compares verdicts on SSH signatures with those of git verify-commit and verify-tag.
func TestSSHAgainstGit(t *testing.T) {
	testenv.Long(t)
	w := newWorkshop(t, signature.SHA1)
	ed, other, rsa, ecdsa := w.sshKey("ed", "-t", "ed25519"), w.sshKey("other", "-t", "ed25519"), w.sshKey("rsa", "-t", "rsa", "-b", "2048"), w.sshKey("ecdsa", "-t", "ecdsa")
	ca, dsa := w.sshKey("ca", "-t", "ed25519"), w.sshKey("dsa", "-t", "dsa")
	certify := func(name string, args ...string) string {
		key := w.sshKey(name, "-t", "ed25519")
		w.run("ssh-keygen", append(append([]string{"-q", "-s", ca, "-I", name}, args...), key+".pub")...)
		return key + "-cert.pub"
	}
	by := func(key string) signing { return signing{format: "ssh", key: key} }
	good := w.commit(by(ed), "good")
	allow := func(line string, keys ...string) signature.Files {
		text := ""
		for _, key := range keys {
			text += fmt.Sprintf(line+"\n", w.public(key))
		}
		return signature.Files{AllowedSigners: text}
	}
	plain := "alice@example.com %s"
	trusted := allow(plain, ed)

	if _, err := w.command(nil, []byte("x"), "git", "-C", w.repo, "hash-object", "-w", "--stdin"); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		id         string
		files      signature.Files
		by, reason string
	}{
		"valid":                  {good, trusted, "alice@example.com", ""},
		"rsa":                    {w.commit(by(rsa), "rsa"), allow(plain, rsa), "alice@example.com", ""},
		"ecdsa":                  {w.commit(by(ecdsa), "ecdsa"), allow(plain, ecdsa), "alice@example.com", ""},
		"dsa":                    {w.commit(by(dsa), "dsa"), allow(plain, ed, dsa), "", "its signature uses DSA"},
		"not signed":             {w.commit(signing{}, "none"), trusted, "", "not signed"},
		"unknown key":            {good, allow(plain, other), "", "is not trusted"},
		"second line":            {good, allow(plain, other, ed), "alice@example.com", ""},
		"tampered message":       {w.altered(good, cut("\n\ngood", "\n\nevil")), trusted, "", "does not match"},
		"tampered author":        {w.altered(good, cut("author A", "author B")), trusted, "", "does not match"},
		"tampered signature":     {w.altered(good, cut("U1NIU0lHAAAAAQ", "U1NIU0lHAAAAAg")), trusted, "", "cannot be read"},
		"no armor":               {w.altered(good, cut("-----BEGIN SSH SIGNATURE-----", "-----BEGIN SSH SIGNATUR------")), trusted, "", "unknown format"},
		"armor without an end":   {w.altered(good, cut("-----END SSH SIGNATURE-----", "-----END SSH SIGNATURES----")), trusted, "", "text after its signature"},
		"two principals":         {good, allow("alice@example.com,bob %s", ed), "alice@example.com", ""},
		"pattern":                {good, allow("*@example.com %s", ed), "*@example.com", ""},
		"excluded principal":     {good, allow("!bob,bob,alice %s", ed), "alice", ""},
		"only excluded":          {good, allow("!alice %s", ed), "", "no principal"},
		"quoted principal":       {good, allow(`"alice@example.com" %s`, ed), "alice@example.com", ""},
		"comments":               {good, signature.Files{AllowedSigners: "# x\n\n" + trusted.AllowedSigners + "#y"}, "alice@example.com", ""},
		"namespace allowed":      {good, allow(`alice namespaces="file,git" %s`, ed), "alice", ""},
		"namespace pattern":      {good, allow(`alice namespaces="g*" %s`, ed), "alice", ""},
		"namespace not allowed":  {good, allow(`alice namespaces="file" %s`, ed), "", "namespace"},
		"valid between":          {good, allow(`alice valid-after="20230101",valid-before="20250101" %s`, ed), "alice", ""},
		"not valid yet":          {good, allow(`alice valid-after="20240103Z" %s`, ed), "", "not valid yet"},
		"valid since a second":   {good, allow(`alice valid-after="20240102030405Z" %s`, ed), "alice", ""},
		"no longer valid":        {good, allow(`alice valid-before="20240102Z" %s`, ed), "", "no longer valid"},
		"valid for a second":     {good, allow(`alice valid-before="20240102030405Z" %s`, ed), "alice", ""},
		"valid in another line":  {good, signature.Files{AllowedSigners: allow(`alice valid-before="20200101" %s`, ed).AllowedSigners + allow("bob %s", ed).AllowedSigners}, "bob", ""},
		"revoked":                {good, signature.Files{AllowedSigners: trusted.AllowedSigners, RevokedKeys: w.public(ed) + "\n"}, "", "revoked"},
		"another revoked":        {good, signature.Files{AllowedSigners: trusted.AllowedSigners, RevokedKeys: w.public(other) + "\n"}, "alice@example.com", ""},
		"certificate":            {w.commit(by(certify("c1", "-n", "carol,dave", "-V", "20230101:20250101")), "cert"), allow("d* cert-authority %s", ca), "dave", ""},
		"certificate, no match":  {w.commit(by(certify("c2", "-n", "carol")), "cert"), allow("d* cert-authority %s", ca), "", "matching principal"},
		"certificate, none":      {w.commit(by(certify("c3")), "cert"), allow("* cert-authority %s", ca), "", "matching principal"},
		"certificate, expired":   {w.commit(by(certify("c4", "-n", "dave", "-V", "20200101:20210101")), "cert"), allow("d* cert-authority %s", ca), "", "not valid at"},
		"certificate of a host":  {w.commit(by(certify("c5", "-h", "-n", "dave")), "cert"), allow("d* cert-authority %s", ca), "", "of a host"},
		"certificate, other ca":  {w.commit(by(certify("c6", "-n", "dave")), "cert"), allow("d* cert-authority %s", other), "", "is not trusted"},
		"certificate, forced":    {w.commit(by(certify("c7", "-n", "dave", "-O", "force-command=/bin/true")), "cert"), allow("d* cert-authority %s", ca), "dave", ""},
		"authority is no signer": {w.commit(by(ca), "ca"), allow("d* cert-authority %s", ca), "", "is not trusted"},
		"signer is no authority": {w.commit(by(certify("c8", "-n", "dave")), "cert"), allow("d* %s", ca), "", "is not trusted"},
		"revoked authority":      {w.commit(by(certify("c9", "-n", "dave")), "cert"), signature.Files{AllowedSigners: allow("d* cert-authority %s", ca).AllowedSigners, RevokedKeys: w.public(ca)}, "", "revoked"},
		"tag":                    {w.tag(by(ed), "v1"), trusted, "alice@example.com", ""},
		"tag, not signed":        {w.tag(signing{}, "v2"), trusted, "", "not signed"},
		"tag, tampered":          {w.altered(w.tag(by(ed), "v3"), cut("tag v3", "tag v4")), trusted, "", "does not match"},
		"text after a tag":       {w.altered(w.tag(by(ed), "v5"), func(s string) string { return s + "more\n" }), trusted, "", "text after"},
		"signature in a message": {w.commit(signing{}, "x\n\n-----BEGIN SSH SIGNATURE-----\nU1NI\n-----END SSH SIGNATURE-----"), trusted, "", "not signed"},
		"encoding":               {w.commit(signing{format: "ssh", key: ed, config: []string{"i18n.commitEncoding=ISO-8859-1"}}, "gr\xfc\xdfe"), trusted, "alice@example.com", ""},
		"another header":         {w.altered(good, cut("\n\ngood", "\nx-note a\n b\n\ngood")), trusted, "", "does not match"},
		"no date":                {w.altered(good, cut("1704164645 +0000\ngpgsig", "x\ngpgsig")), trusted, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := *w
			in.t = t
			if name == "no date" {
				tc.reason = "date cannot be read"
			}
			in.check(tc.id, tc.files, tc.by, tc.reason)
		})
	}
}

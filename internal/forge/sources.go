package forge

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"lockstep/internal/disk"
)

const (
	maxFile        = 64 << 10 // bytes
	minSecret      = 16       // bytes; a shorter secret can be guessed from a single delivery
	reloadInterval = time.Second
)

// files are the files of a source, with the suffixes of the corresponding environment variables.
var files = map[string]string{
	"forge": "FORGE", "secret": "SECRET", "previousSecret": "PREVIOUS_SECRET", "unsigned": "UNSIGNED", "urls": "URLS",
	"autoApp": "AUTO_APP", "autoCredential": "AUTO_CREDENTIAL", "autoURLs": "AUTO_URLS",
}

const variablePrefix = "LOCKSTEP_HOOK_"

var (
	namePattern     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)
	variableOfForge = regexp.MustCompile(`^LOCKSTEP_HOOK_([A-Z0-9_]*)_FORGE$`)
	variableSecret  = regexp.MustCompile(`^LOCKSTEP_HOOK_([A-Z0-9_]*?)_(PREVIOUS_)?SECRET$`)
)

// Sources holds the configured sources by name.
type Sources struct {
	dir     string
	env     map[string]string
	sources map[string]*slot
}

// slot caches a source.
type slot struct {
	mu     sync.Mutex
	source Source
	err    error
	read   time.Time
}

// LoadSources loads the sources from the directories in dir and from environ, in the form of [os.Environ]:
//
//	{dir}/{name}/forge            LOCKSTEP_HOOK_{NAME}_FORGE             a [Kind], such as github
//	{dir}/{name}/secret           LOCKSTEP_HOOK_{NAME}_SECRET            16 bytes or more
//	{dir}/{name}/previousSecret   LOCKSTEP_HOOK_{NAME}_PREVIOUS_SECRET   also accepted, for rotation
//	{dir}/{name}/unsigned         LOCKSTEP_HOOK_{NAME}_UNSIGNED          true: there is no secret
//	{dir}/{name}/urls             LOCKSTEP_HOOK_{NAME}_URLS              URL prefixes, separated by white space
//	{dir}/{name}/autoApp          LOCKSTEP_HOOK_{NAME}_AUTO_APP          see [Auto]
//	{dir}/{name}/autoCredential   LOCKSTEP_HOOK_{NAME}_AUTO_CREDENTIAL
//	{dir}/{name}/autoURLs         LOCKSTEP_HOOK_{NAME}_AUTO_URLS
//
// Variable names use upper case, and "_" for "-" and ".". A source that has only variables is named in lower
// case. Files take precedence over variables. If dir is empty, only variables are read. Names that begin with
// a dot are skipped, because Kubernetes creates them. LoadSources returns an error for invalid settings, if
// the variables of two sources are the same, or if a source has no secret and is not marked as unsigned. The
// error says what to do and never contains a secret.
func LoadSources(dir string, environ []string) (*Sources, error) {
	s := &Sources{dir: dir, env: map[string]string{}, sources: map[string]*slot{}}
	for _, entry := range environ {
		if key, value, ok := strings.Cut(entry, "="); ok && strings.HasPrefix(key, variablePrefix) {
			s.env[key] = value
		}
	}
	var names []string
	err := s.stable(dir, func() (err error) {
		names, err = s.find()
		return err
	})
	if err == nil && dir != "" && len(names) == 0 {
		err = fmt.Errorf("webhook sources: %s has none; a source is a directory with the files forge and secret", dir)
	}
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		source, err := s.load(name)
		if err != nil {
			return nil, err
		}
		s.sources[name] = &slot{source: source, read: time.Now()}
	}
	return s, nil
}

// Names returns the names of the sources in order.
func (s *Sources) Names() []string {
	names := make([]string, 0, len(s.sources))
	for name := range s.sources {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Credentials returns the names of the credentials of automatic watches.
func (s *Sources) Credentials() (names []string) {
	for _, held := range s.sources {
		held.mu.Lock()
		if auto := held.source.Auto; auto != nil && auto.Credential != "" {
			names = append(names, auto.Credential)
		}
		held.mu.Unlock()
	}
	return names
}

// Get returns a source by name and reports whether it exists. It reloads files that were loaded more than a second
// ago, so that new secrets take effect soon, and returns an error if they have become invalid. A new source requires a
// restart.
func (s *Sources) Get(name string) (Source, bool, error) {
	held, ok := s.sources[name]
	if !ok {
		return Source{}, false, nil
	}
	held.mu.Lock()
	defer held.mu.Unlock()
	if time.Since(held.read) >= reloadInterval {
		held.source, held.err = s.load(name)
		held.read = time.Now()
	}
	return held.source, true, held.err
}

// find returns the names of all sources.
func (s *Sources) find() ([]string, error) {
	var names []string
	variables := map[string]string{} // name of the source that a variable belongs to
	if s.dir != "" {
		entries, err := os.ReadDir(s.dir)
		if err != nil {
			return nil, fmt.Errorf("webhook sources: %w", err)
		}
		for _, entry := range entries {
			name := entry.Name()
			if strings.HasPrefix(name, ".") {
				continue
			}
			at := filepath.Join(s.dir, name)
			if info, err := os.Stat(at); err != nil || !info.IsDir() {
				return nil, fmt.Errorf("webhook sources: %s is not a directory; a source is a directory with the "+
					"files forge and secret", at)
			}
			if !namePattern.MatchString(name) {
				return nil, fmt.Errorf("webhook sources: invalid name %s: want at most 100 letters, digits, dots, "+
					"underscores or hyphens", at)
			}
			key := variable(name, "forge")
			if other, taken := variables[key]; taken {
				return nil, fmt.Errorf("webhook sources: %q and %q would share the secrets in %s…; rename one of them",
					other, name, strings.TrimSuffix(key, "FORGE"))
			}
			names = append(names, name)
			variables[key] = name
		}
	}
	for key := range s.env {
		parts := variableOfForge.FindStringSubmatch(key)
		if parts == nil || variables[key] != "" {
			continue
		}
		name := strings.ToLower(parts[1])
		if !namePattern.MatchString(name) {
			return nil, fmt.Errorf("webhook sources: invalid name in %s: want at most 100 letters, digits or underscores", key)
		}
		names = append(names, name)
		variables[key] = name
	}
	for key := range s.env {
		parts := variableSecret.FindStringSubmatch(key)
		if parts != nil && variables[variablePrefix+parts[1]+"_FORGE"] == "" {
			return nil, fmt.Errorf("webhook sources: %s belongs to no source; set %s%s_FORGE", key, variablePrefix, parts[1])
		}
	}
	return names, nil
}

// stable reads files below dir with [disk.ReadStable] if sources have a directory.
func (s *Sources) stable(dir string, read func() error) error {
	if s.dir == "" {
		return read()
	}
	return disk.ReadStable(dir, read)
}

// load loads one source.
func (s *Sources) load(name string) (Source, error) {
	var source Source
	err := s.stable(filepath.Join(s.dir, name), func() (err error) {
		source, err = s.parse(name)
		return err
	})
	if err != nil {
		return Source{}, fmt.Errorf("webhook source %s: %w", name, err)
	}
	return source, nil
}

func (s *Sources) parse(name string) (Source, error) {
	texts := map[string]string{}
	for file := range files {
		text, err := s.read(name, file)
		if err != nil {
			return Source{}, err
		}
		texts[file] = text
	}
	source := Source{Name: name, URLs: strings.Fields(texts["urls"])}
	if texts["forge"] == "" {
		return Source{}, fmt.Errorf("no forge; add %s", s.where(name, "forge"))
	}
	var err error
	if source.Kind, err = ParseKind(strings.TrimSpace(texts["forge"])); err != nil {
		return Source{}, fmt.Errorf("%s: %w", s.where(name, "forge"), err)
	}
	switch strings.TrimSpace(texts["unsigned"]) {
	case "true":
		source.Unsigned = true
	case "", "false":
	default:
		return Source{}, fmt.Errorf("%s: want true or false", s.where(name, "unsigned"))
	}
	if source.Secrets, err = s.secrets(name, source, texts); err != nil {
		return Source{}, err
	}
	for _, prefix := range source.URLs {
		if err := checkPrefix(prefix); err != nil {
			return Source{}, fmt.Errorf("%s: %w", s.where(name, "urls"), err)
		}
	}
	source.Auto, err = s.auto(name, texts)
	return source, err
}

// secrets returns the source's secrets, the current one first.
func (s *Sources) secrets(name string, source Source, texts map[string]string) ([]string, error) {
	current, previous := texts["secret"], texts["previousSecret"]
	switch {
	case current == "" && previous != "":
		return nil, fmt.Errorf("a previous secret without a secret; add %s", s.where(name, "secret"))
	case current == "" && !source.Unsigned:
		return nil, fmt.Errorf("no secret; add %s and configure the same secret at the forge, or accept unsigned "+
			"deliveries with %s",
			s.where(name, "secret"), s.where(name, "unsigned"))
	case current == "":
		return nil, nil
	case source.Unsigned:
		return nil, fmt.Errorf("both a secret and unsigned; remove %s or %s", s.where(name, "unsigned"),
			s.where(name, "secret"))
	}
	if err := checkSecret(source.Kind, current); err != nil {
		return nil, fmt.Errorf("%s: %w", s.where(name, "secret"), err)
	}
	if previous == "" {
		return []string{current}, nil
	}
	if err := checkSecret(source.Kind, previous); err != nil {
		return nil, fmt.Errorf("%s: %w", s.where(name, "previousSecret"), err)
	}
	return []string{current, previous}, nil
}

func checkSecret(kind Kind, secret string) error {
	key := []byte(secret)
	if kind == Standard || kind == GitLab {
		var err error
		if key, err = standardKey(secret); err != nil {
			return errors.New("the text after whsec_ is not base64") // the decoder's error would quote a part of it
		}
	}
	if len(key) < minSecret {
		return fmt.Errorf("shorter than %d bytes; create one with: openssl rand -hex 32", minSecret)
	}
	return nil
}

func (s *Sources) auto(name string, texts map[string]string) (*Auto, error) {
	auto := &Auto{
		App: strings.TrimSpace(texts["autoApp"]), Credential: strings.TrimSpace(texts["autoCredential"]),
		URLs: strings.Fields(texts["autoURLs"]),
	}
	switch {
	case auto.App == "" && auto.Credential == "" && len(auto.URLs) == 0:
		return nil, nil
	case auto.App == "":
		return nil, fmt.Errorf("automatic watches need an app; add %s", s.where(name, "autoApp"))
	case len(auto.URLs) == 0:
		return nil, fmt.Errorf("automatic watches need allowed URLs; list URL prefixes in %s", s.where(name, "autoURLs"))
	case len(auto.App) > 255 || !isPrintable(auto.App):
		return nil, fmt.Errorf("%s: want at most 255 printable bytes", s.where(name, "autoApp"))
	case auto.Credential != "" && !namePattern.MatchString(auto.Credential):
		return nil, fmt.Errorf("%s: want a credential's name: at most 100 letters, digits, dots, "+
			"underscores or hyphens", s.where(name, "autoCredential"))
	}
	for _, prefix := range auto.URLs {
		if err := checkPrefix(prefix); err != nil {
			return nil, fmt.Errorf("%s: %w", s.where(name, "autoURLs"), err)
		}
	}
	return auto, nil
}

// read returns the content of a file or, if there is none, of the variable. An empty file named secret is an error,
// because it is probably a mistake.
func (s *Sources) read(name, file string) (string, error) {
	if s.dir == "" {
		return s.env[variable(name, file)], nil
	}
	from := filepath.Join(s.dir, name, file)
	if info, err := os.Stat(from); err == nil && info.Size() > maxFile {
		return "", fmt.Errorf("%s is longer than %d bytes", from, maxFile)
	}
	text, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		return s.env[variable(name, file)], nil
	}
	if err != nil {
		return "", err
	}
	trimmed := strings.TrimRight(string(text), "\r\n")
	if file == "secret" && trimmed == "" {
		return "", fmt.Errorf("%s is empty; write the secret to it or remove the file", from)
	}
	return trimmed, nil
}

// where returns the names of the variable and, if sources have a directory, of the file.
func (s *Sources) where(name, file string) string {
	if s.dir == "" {
		return variable(name, file)
	}
	return filepath.Join(s.dir, name, file) + " or " + variable(name, file)
}

func variable(name, file string) string {
	name = strings.NewReplacer("-", "_", ".", "_").Replace(name)
	return variablePrefix + strings.ToUpper(name) + "_" + files[file]
}

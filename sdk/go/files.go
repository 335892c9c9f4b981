package ringfence

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
)

// files are those of TLS. They are read again when they have changed; if they cannot be used then, the old ones stay in use.
type files struct {
	ca, cert, key string
	warn          func(code, message string)

	mu     sync.Mutex
	stamp  string
	config *tls.Config
}

// current returns what the files say now.
func (f *files) current() *tls.Config {
	stamp := f.look()
	f.mu.Lock()
	isNew := stamp != f.stamp
	f.stamp = stamp
	config := f.config
	f.mu.Unlock()
	if !isNew {
		return config
	}
	next, err := f.load()
	if err != nil {
		// They may be written just now.
		f.warn(WarnFiles, "the old files of TLS stay in use: "+err.Error())
		return config
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = next
	return next
}

func (f *files) look() string {
	var stamp strings.Builder
	for _, path := range []string{f.ca, f.cert, f.key} {
		if path == "" {
			continue
		}
		if info, err := os.Stat(path); err == nil {
			fmt.Fprintf(&stamp, "%d %d,", info.ModTime().UnixNano(), info.Size())
		} else {
			stamp.WriteString("missing,")
		}
	}
	return stamp.String()
}

func (f *files) load() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, &InvalidError{"ca", err.Error()}
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, &InvalidError{"ca", f.ca + ": it has no certificate in PEM"}
		}
	}
	if f.cert != "" {
		for _, file := range []struct{ field, path string }{{"cert", f.cert}, {"key", f.key}} {
			if _, err := os.ReadFile(file.path); err != nil {
				return nil, &InvalidError{file.field, err.Error()}
			}
		}
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, &InvalidError{"key", fmt.Sprintf("%s, or the certificate in %s: %v", f.key, f.cert, err)}
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// distrusted says why the node's certificate is not trusted, if that is the error.
func (f *files) distrusted(err error) error {
	var refused *tls.CertificateVerificationError
	if !errors.As(err, &refused) {
		return nil
	}
	which := ""
	if shown := refused.UnverifiedCertificates; len(shown) > 0 {
		which = fmt.Sprintf(" (of %s, signed by %s, valid from %s to %s)", shown[0].Subject, shown[0].Issuer,
			shown[0].NotBefore.Format("2006-01-02"), shown[0].NotAfter.Format("2006-01-02"))
	}
	hint := ""
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		hint = ". WithCA names the file of its authority"
	}
	return fmt.Errorf("the node's certificate%s is refused: %w%s", which, refused.Err, hint)
}

// isRefusal says whether the node refused this client's certificate, or wanted one. With TLS 1.3 it says so after the handshake, when a request may
// have been sent, but has not read that.
func isRefusal(err error) bool {
	alert := (*net.OpError)(nil)
	if !errors.As(err, &alert) || alert.Op != "remote error" {
		return false
	}
	text := alert.Err.Error()
	return strings.Contains(text, "certificate") || strings.Contains(text, "access denied")
}

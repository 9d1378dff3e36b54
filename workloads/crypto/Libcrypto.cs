using System;
using System.Runtime.InteropServices;

namespace Workloads
{
    /// <summary>The same work by libcrypto's own functions, as in OpenSSL's manual.</summary>
    internal sealed class Libcrypto
    {
        private const string Library = "crypto";
        private const int Sha256Nid = 672;

        private readonly byte[] data;
        private readonly byte[] key;
        private readonly IntPtr rsa;
        private readonly IntPtr[] curves;
        private readonly IntPtr cipher = EVP_CIPHER_CTX_new();

        static Libcrypto()
        {
            NativeLibrary.SetDllImportResolver(typeof(Libcrypto).Assembly, (name, assembly, path) =>
            {
                foreach (string file in new[] { "libcrypto.so.3", "libcrypto.so.1.1" })
                {
                    if (name == Library && NativeLibrary.TryLoad(file, out IntPtr handle))
                    {
                        return handle;
                    }
                }
                return name == Library
                    ? throw new DllNotFoundException("no libcrypto: install Debian's package libssl3")
                    : IntPtr.Zero;
            });
        }

        public Libcrypto(byte[] data, byte[] key)
        {
            this.data = data;
            this.key = key;
            rsa = RSA_new();
            IntPtr exponent = BN_new();
            bool made = BN_set_word(exponent, 65537) == 1 && RSA_generate_key_ex(rsa, 2048, exponent, IntPtr.Zero) == 1;
            // P-256 and P-384
            curves = new[] { EC_KEY_new_by_curve_name(415), EC_KEY_new_by_curve_name(715) };
            foreach (IntPtr curve in curves)
            {
                made &= EC_KEY_generate_key(curve) == 1;
            }
            Check(made, "keys");
        }

        /// <summary>
        /// Whether the runtime's classes can be used. .NET Core 3.1 ends the
        /// process where it finds no OpenSSL that it knows, so it must not be asked.
        /// </summary>
        public static bool IsKnownToTheRuntime()
        {
            if (Environment.Version.Major >= 5)
            {
                return true;
            }
            foreach (string file in new[] { "libssl.so.1.1", "libssl.so.1.0.2", "libssl.so.1.0.0", "libssl.so.10" })
            {
                if (NativeLibrary.TryLoad(file, out IntPtr _))
                {
                    return true;
                }
            }
            return false;
        }

        public long HashDirect()
        {
            var length = (UIntPtr)data.Length;
            var sha1 = new byte[20];
            var sha256 = new byte[32];
            var sha512 = new byte[64];
            var md5 = new byte[16];
            var hmac = new byte[32];
            SHA1(data, length, sha1);
            SHA256(data, length, sha256);
            SHA512(data, length, sha512);
            MD5(data, length, md5);
            HMAC(EVP_sha256(), key, key.Length, data, length, hmac, out int _);
            long sum = 0;
            foreach (byte[] hash in new[] { sha1, sha256, sha512, md5, hmac })
            {
                sum = Crypto.Mix(sum, hash);
            }
            return sum;
        }

        public long EncryptDirect()
        {
            long sum = 0;
            var text = new byte[data.Length + 16];
            bool right = EVP_EncryptInit_ex(cipher, EVP_aes_256_cbc(), IntPtr.Zero, key, Slice(100, 16)) == 1;
            right &= EVP_CIPHER_CTX_set_padding(cipher, 0) == 1;
            right &= EVP_EncryptUpdate(cipher, text, out int length, data, data.Length) == 1;
            Array.Resize(ref text, length);
            sum = Crypto.Mix(sum, Crypto.Last(text));
            var tag = new byte[16];
            right &= EVP_EncryptInit_ex(cipher, EVP_aes_256_gcm(), IntPtr.Zero, key, Slice(200, 12)) == 1;
            right &= EVP_EncryptUpdate(cipher, text, out length, data, data.Length) == 1;
            right &= EVP_EncryptFinal_ex(cipher, tag, out int _) == 1;
            // EVP_CTRL_GCM_GET_TAG
            right &= EVP_CIPHER_CTX_ctrl(cipher, 0x10, 16, tag) == 1;
            sum = Crypto.Mix(Crypto.Mix(sum, Crypto.Last(text)), tag);
            // Not in all runtimes' classes.
            right &= EVP_EncryptInit_ex(cipher, EVP_chacha20_poly1305(), IntPtr.Zero, key, Slice(200, 12)) == 1;
            right &= EVP_EncryptUpdate(cipher, text, out length, data, data.Length) == 1;
            Check(right, "ciphers");
            return sum;
        }

        public void SignDirect()
        {
            var hash = new byte[32];
            SHA256(data, (UIntPtr)1000, hash);
            var signature = new byte[256];
            bool right = RSA_sign(Sha256Nid, hash, hash.Length, signature, out int length, rsa) == 1;
            right &= RSA_verify(Sha256Nid, hash, hash.Length, signature, length, rsa) == 1;
            foreach (IntPtr curve in curves)
            {
                right &= ECDSA_sign(0, hash, hash.Length, signature, out length, curve) == 1;
                right &= ECDSA_verify(0, hash, hash.Length, signature, length, curve) == 1;
            }
            Check(right, "signatures");
        }

        public void RandomDirect()
        {
            var bytes = new byte[64 << 10];
            Check(RAND_bytes(bytes, bytes.Length) == 1, "random numbers");
            NotConstant(bytes);
        }

        /// <summary>Random bytes are not all the same.</summary>
        public static void NotConstant(byte[] bytes)
        {
            Check(Array.Exists(bytes, b => b != bytes[0]), "random numbers");
        }

        private byte[] Slice(int start, int length)
        {
            var slice = new byte[length];
            Array.Copy(data, start, slice, 0, length);
            return slice;
        }

        private static void Check(bool right, string what)
        {
            if (!right)
            {
                throw new InvalidOperationException(what + " failed");
            }
        }

        [DllImport(Library)] private static extern IntPtr SHA1(byte[] data, UIntPtr length, byte[] hash);
        [DllImport(Library)] private static extern IntPtr SHA256(byte[] data, UIntPtr length, byte[] hash);
        [DllImport(Library)] private static extern IntPtr SHA512(byte[] data, UIntPtr length, byte[] hash);
        [DllImport(Library)] private static extern IntPtr MD5(byte[] data, UIntPtr length, byte[] hash);
        [DllImport(Library)] private static extern IntPtr EVP_sha256();
        [DllImport(Library)] private static extern IntPtr HMAC(IntPtr kind, byte[] key, int keyLength, byte[] data, UIntPtr length, byte[] hash, out int hashLength);
        [DllImport(Library)] private static extern IntPtr EVP_CIPHER_CTX_new();
        [DllImport(Library)] private static extern IntPtr EVP_aes_256_cbc();
        [DllImport(Library)] private static extern IntPtr EVP_aes_256_gcm();
        [DllImport(Library)] private static extern IntPtr EVP_chacha20_poly1305();
        [DllImport(Library)] private static extern int EVP_EncryptInit_ex(IntPtr cipher, IntPtr kind, IntPtr engine, byte[] key, byte[] vector);
        [DllImport(Library)] private static extern int EVP_CIPHER_CTX_set_padding(IntPtr cipher, int padding);
        [DllImport(Library)] private static extern int EVP_EncryptUpdate(IntPtr cipher, byte[] text, out int length, byte[] data, int dataLength);
        [DllImport(Library)] private static extern int EVP_EncryptFinal_ex(IntPtr cipher, byte[] text, out int length);
        [DllImport(Library)] private static extern int EVP_CIPHER_CTX_ctrl(IntPtr cipher, int what, int number, byte[] bytes);
        [DllImport(Library)] private static extern int RAND_bytes(byte[] bytes, int length);
        [DllImport(Library)] private static extern IntPtr BN_new();
        [DllImport(Library)] private static extern int BN_set_word(IntPtr number, ulong value);
        [DllImport(Library)] private static extern IntPtr RSA_new();
        [DllImport(Library)] private static extern int RSA_generate_key_ex(IntPtr rsa, int bits, IntPtr exponent, IntPtr callback);
        [DllImport(Library)] private static extern int RSA_sign(int kind, byte[] hash, int hashLength, byte[] signature, out int length, IntPtr rsa);
        [DllImport(Library)] private static extern int RSA_verify(int kind, byte[] hash, int hashLength, byte[] signature, int length, IntPtr rsa);
        [DllImport(Library)] private static extern IntPtr EC_KEY_new_by_curve_name(int curve);
        [DllImport(Library)] private static extern int EC_KEY_generate_key(IntPtr key);
        [DllImport(Library)] private static extern int ECDSA_sign(int kind, byte[] hash, int hashLength, byte[] signature, out int length, IntPtr key);
        [DllImport(Library)] private static extern int ECDSA_verify(int kind, byte[] hash, int hashLength, byte[] signature, int length, IntPtr key);
    }
}
